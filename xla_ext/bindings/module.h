// The parts of the module coop_jax._ext.
#ifndef COOP_BINDINGS_MODULE_H_
#define COOP_BINDINGS_MODULE_H_

#include <nanobind/nanobind.h>

namespace coop {

void BindBooks(nanobind::module_& m);
void BindGraph(nanobind::module_& m);
void BindOnlineArena(nanobind::module_& m);
void BindOptions(nanobind::module_& m);
void BindPacking(nanobind::module_& m);
void BindPlan(nanobind::module_& m);
void BindPool(nanobind::module_& m);
void BindRetention(nanobind::module_& m);
void BindSchedule(nanobind::module_& m);

}  // namespace coop

#endif  // COOP_BINDINGS_MODULE_H_
