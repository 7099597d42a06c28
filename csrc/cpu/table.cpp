// The table of one instruction set.
#include "ugnn/cpu_table.h"

namespace ugnn {
namespace UGNN_ISA {

#define UGNN_STRING(name) #name
#define UGNN_NAME(name) UGNN_STRING(name)

extern const KernelTable table;
const KernelTable table = {UGNN_NAME(UGNN_ISA),
                           ada_propagate_forward_any,
                           ada_propagate_backward_any,
                           propagate_forward_any,
                           neighbor_stat_any,
                           neighbor_var_backward_any,
                           gat_aggregate_forward_any,
                           gat_aggregate_backward_any,
                           local_smoothness_any,
                           kept_degree_any,
                           denoising_energy_any,
                           edge_dot_any,
                           row_sum_any,
                           solve_any,
                           sparse_linear_any,
                           sparse_dense_any,
                           dropout_any,
                           dropout_linear_any,
                           padded_width_any};

}  // namespace UGNN_ISA
}  // namespace ugnn
