// Graph.

#include <nanobind/stl/optional.h>

#include "bindings/arrays.h"
#include "bindings/module.h"
#include "core/graph/graph.h"

namespace coop {
namespace {

constexpr const char* kGraphDoc = R"(
A program to plan: operations in execution order and the tensors between them.

Immutable, and checked when it is made (`ValueError`, naming the operation or
tensor at fault). Operation `i` reads `op_inputs[op_inputs_ptr[i]:op_inputs_ptr[i
+ 1]]` and makes the same range of `op_outputs`; a repeated operand counts once.
A tensor that no operation makes is a graph input, there from the start.

Arguments:
  op_seconds: float64, the time each operation takes.
  op_workspace_bytes: int64, scratch memory while it runs.
  op_recomputable: bool, whether it may run more than once.
  op_inputs_ptr, op_inputs, op_outputs_ptr, op_outputs: int64, as above.
  tensor_bytes: int64. A tensor of no bytes takes no place.
  tensor_external: bool, lives outside the pool (XLA's argument and output
    buffers): no pool bytes, never evicted.
  tensor_pinned: bool, lives in the pool, never evicted, never moved.
  tensor_output: bool, must be resident when the program ends.
  in_place: int64 (k, 3), rows (operation, input, output): the output may take
    over the block of the input. Same bytes, both in the pool.
  overwrites: int64 (k, 3), rows (operation, old, new): the operation mutates,
    the old value is gone for good. Both external or both pinned, same bytes,
    and nothing may read the old one afterwards.
  releases: int64 (k, 2), rows (operation, tensor): the program drops its handle
    after the operation; tensors not listed are held to the end. Default: every
    tensor is released after its last use.
)";

Graph* MakeGraph(void* storage, const AnyArray& op_seconds,
                 const AnyArray& op_workspace_bytes,
                 const AnyArray& op_recomputable,
                 const AnyArray& op_inputs_ptr, const AnyArray& op_inputs,
                 const AnyArray& op_outputs_ptr, const AnyArray& op_outputs,
                 const AnyArray& tensor_bytes, const AnyArray& tensor_external,
                 const AnyArray& tensor_pinned, const AnyArray& tensor_output,
                 const AnyArray& in_place, const AnyArray& overwrites,
                 const std::optional<AnyArray>& releases) {
  GraphArrays arrays{
      .op_seconds = ToVector<double>(op_seconds, "Graph: `op_seconds`"),
      .op_workspace_bytes =
          ToVector<int64_t>(op_workspace_bytes, "Graph: `op_workspace_bytes`"),
      .op_recomputable =
          ToVector<bool>(op_recomputable, "Graph: `op_recomputable`"),
      .op_inputs_ptr =
          ToVector<int64_t>(op_inputs_ptr, "Graph: `op_inputs_ptr`"),
      .op_inputs = ToVector<int64_t>(op_inputs, "Graph: `op_inputs`"),
      .op_outputs_ptr =
          ToVector<int64_t>(op_outputs_ptr, "Graph: `op_outputs_ptr`"),
      .op_outputs = ToVector<int64_t>(op_outputs, "Graph: `op_outputs`"),
      .tensor_bytes = ToVector<int64_t>(tensor_bytes, "Graph: `tensor_bytes`"),
      .tensor_external =
          ToVector<bool>(tensor_external, "Graph: `tensor_external`"),
      .tensor_pinned = ToVector<bool>(tensor_pinned, "Graph: `tensor_pinned`"),
      .tensor_output = ToVector<bool>(tensor_output, "Graph: `tensor_output`"),
      .in_place = ToRecords<InPlacePair>(in_place, "Graph: `in_place`"),
      .overwrites = ToRecords<Overwrite>(overwrites, "Graph: `overwrites`"),
      .releases = std::nullopt,
  };
  if (releases) {
    arrays.releases = ToRecords<Release>(*releases, "Graph: `releases`");
  }
  return new (storage) Graph(std::move(arrays));
}

template <typename Value>
auto PerTensor(const Graph& graph, Value value) {
  return NewArray(graph.num_tensors(), value);
}

auto FlatArray(const std::vector<int64_t>& values) {
  return NewArray(std::ssize(values), [&](int64_t i) { return values[At(i)]; });
}

// (k, kColumns), row by row.
template <size_t kColumns>
auto TableArray(const std::vector<int64_t>& values) {
  return nb::cast(FlatArray(values))
      .attr("reshape")(std::ssize(values) / int64_t{kColumns}, kColumns);
}

// The arrays for `Graph(**arrays)`. Releases as they are by default become None,
// as only that form can release a graph input that nothing reads.
nb::dict ArraysOf(const Graph& graph) {
  std::vector<int64_t> inputs_ptr{0}, inputs, outputs_ptr{0}, outputs;
  std::vector<int64_t> in_place, overwrites, releases;
  for (OpIdx op = 0; op < graph.num_ops(); ++op) {
    for (const TensorIdx t : graph.inputs(op)) inputs.push_back(t);
    for (const TensorIdx t : graph.outputs(op)) outputs.push_back(t);
    inputs_ptr.push_back(std::ssize(inputs));
    outputs_ptr.push_back(std::ssize(outputs));
    for (const auto& [_, input, output] : graph.in_place(op)) {
      in_place.insert(in_place.end(), {op, input, output});
    }
    for (const auto& [_, old_tensor, new_tensor] : graph.overwrites(op)) {
      overwrites.insert(overwrites.end(), {op, old_tensor, new_tensor});
    }
  }
  bool is_default = true;
  for (TensorIdx t = 0; t < graph.num_tensors(); ++t) {
    const bool stays =
        graph.is_output(t) || graph.is_pinned(t) || graph.is_external(t);
    if (!stays) is_default &= graph.release(t) == graph.last_use(t);
    if (graph.release(t) == kNever) continue;
    releases.insert(releases.end(), {graph.release(t), t});
  }
  const auto per_op = [&](auto value) {
    return nb::cast(NewArray(graph.num_ops(), value));
  };
  const auto per_tensor = [&](auto value) {
    return nb::cast(PerTensor(graph, value));
  };
  nb::dict arrays;
  arrays["op_seconds"] = per_op([&](OpIdx op) { return graph.seconds(op); });
  arrays["op_workspace_bytes"] =
      per_op([&](OpIdx op) { return graph.workspace_bytes(op); });
  arrays["op_recomputable"] =
      per_op([&](OpIdx op) { return graph.is_recomputable(op); });
  arrays["op_inputs_ptr"] = FlatArray(inputs_ptr);
  arrays["op_inputs"] = FlatArray(inputs);
  arrays["op_outputs_ptr"] = FlatArray(outputs_ptr);
  arrays["op_outputs"] = FlatArray(outputs);
  arrays["tensor_bytes"] =
      per_tensor([&](TensorIdx t) { return graph.bytes(t); });
  arrays["tensor_external"] =
      per_tensor([&](TensorIdx t) { return graph.is_external(t); });
  arrays["tensor_pinned"] =
      per_tensor([&](TensorIdx t) { return graph.is_pinned(t); });
  arrays["tensor_output"] =
      per_tensor([&](TensorIdx t) { return graph.is_output(t); });
  arrays["in_place"] = TableArray<3>(in_place);
  arrays["overwrites"] = TableArray<3>(overwrites);
  arrays["releases"] = nb::none();
  if (!is_default) arrays["releases"] = TableArray<2>(releases);
  return arrays;
}

}  // namespace

void BindGraph(nb::module_& m) {
  nb::class_<Graph>(m, "Graph", kGraphDoc)
      .def(
          "__init__",
          [](Graph* graph, AnyArray op_seconds, AnyArray op_workspace_bytes,
             AnyArray op_recomputable, AnyArray op_inputs_ptr,
             AnyArray op_inputs, AnyArray op_outputs_ptr, AnyArray op_outputs,
             AnyArray tensor_bytes, AnyArray tensor_external,
             AnyArray tensor_pinned, AnyArray tensor_output, AnyArray in_place,
             AnyArray overwrites, std::optional<AnyArray> releases) {
            MakeGraph(graph, op_seconds, op_workspace_bytes, op_recomputable,
                      op_inputs_ptr, op_inputs, op_outputs_ptr, op_outputs,
                      tensor_bytes, tensor_external, tensor_pinned,
                      tensor_output, in_place, overwrites, releases);
          },
          nb::arg("op_seconds"), nb::arg("op_workspace_bytes"),
          nb::arg("op_recomputable"), nb::arg("op_inputs_ptr"),
          nb::arg("op_inputs"), nb::arg("op_outputs_ptr"),
          nb::arg("op_outputs"), nb::arg("tensor_bytes"),
          nb::arg("tensor_external"), nb::arg("tensor_pinned"),
          nb::arg("tensor_output"), nb::arg("in_place"),
          nb::arg("overwrites"), nb::arg("releases") = nb::none())
      .def_prop_ro("num_ops", &Graph::num_ops)
      .def_prop_ro("num_tensors", &Graph::num_tensors)
      .def_prop_ro(
          "op_seconds",
          [](const Graph& graph) {
            return NewArray(graph.num_ops(),
                            [&](OpIdx op) { return graph.seconds(op); });
          },
          nb::rv_policy::reference, "float64 per operation, as given.")
      .def_prop_ro(
          "op_workspace_bytes",
          [](const Graph& graph) {
            return NewArray(graph.num_ops(), [&](OpIdx op) {
              return graph.workspace_bytes(op);
            });
          },
          nb::rv_policy::reference, "int64 per operation, as given.")
      .def_prop_ro(
          "tensor_bytes",
          [](const Graph& graph) {
            return PerTensor(graph,
                             [&](TensorIdx t) { return graph.bytes(t); });
          },
          nb::rv_policy::reference, "int64 per tensor, as given.")
      .def_prop_ro(
          "tensor_pinned",
          [](const Graph& graph) {
            return PerTensor(graph,
                             [&](TensorIdx t) { return graph.is_pinned(t); });
          },
          nb::rv_policy::reference, "bool per tensor, as given.")
      .def_prop_ro(
          "producer",
          [](const Graph& graph) {
            return PerTensor(graph,
                             [&](TensorIdx t) { return graph.producer(t); });
          },
          nb::rv_policy::reference,
          "int64 per tensor: the operation that makes it, -1 for a graph "
          "input.")
      .def_prop_ro(
          "last_use",
          [](const Graph& graph) {
            return PerTensor(graph,
                             [&](TensorIdx t) { return graph.last_use(t); });
          },
          nb::rv_policy::reference,
          "int64 per tensor: the last operation that reads it; `num_ops` for "
          "an output; its producer if nothing reads it.")
      .def_prop_ro(
          "evictable",
          [](const Graph& graph) {
            return PerTensor(graph, [&](TensorIdx t) {
              return graph.is_evictable(t);
            });
          },
          nb::rv_policy::reference,
          "bool per tensor: a planner may drop it while the program still "
          "holds it.")
      .def_prop_ro(
          "deadline",
          [](const Graph& graph) {
            return PerTensor(graph,
                             [&](TensorIdx t) { return graph.deadline(t); });
          },
          nb::rv_policy::reference,
          "int64 per tensor: the position after which it may no longer be "
          "recomputable, 2**63 - 1 if there is none.")
      .def("arrays", &ArraysOf,
           "The arguments that make this graph again, as a dict of new arrays.")
      .def("__repr__", [](const Graph& graph) {
        return "Graph(num_ops=" + std::to_string(graph.num_ops()) +
               ", num_tensors=" + std::to_string(graph.num_tensors()) + ")";
      });
}

}  // namespace coop
