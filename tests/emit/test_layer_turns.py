"""Layer turns: a layer runs again when no other layer's way back is to come before."""

from coop_jax.emit.layer_turns import LayerTurns


def test_a_value_read_on_the_way_back_of_the_head_does_not_begin_the_first_layer():
    turns = LayerTurns({2: [100, 105, 130], 1: [140, 150, 160], 0: [90, 180, 190, 195]})
    assert not turns.has_come(0, 90)
    assert turns.has_come(2, 100)
    assert turns.has_come(1, 140)
    assert turns.has_come(0, 180)


def test_a_layer_of_which_nothing_is_read_may_always_run():
    assert LayerTurns({}).has_come(3, 10)
    assert LayerTurns({1: [20]}).has_come(3, 10)
