// See loss.h.
#include "kernels/loss.h"

#include <assert.h>

void farm_loss(const struct farm_loss_config *config, const struct farm_loss_batch *batch,
               struct farm_loss_stats *stats) {
    assert(batch->rows >= 0 && batch->actions >= 1);
    for (int row = 0; row < batch->rows; row++) {
        assert(batch->weight[row] == 0 || (batch->action[row] >= 0 && batch->action[row] < batch->actions));
        const struct farm_loss_terms terms = farm_loss_row(config, batch, row);
        stats->policy += terms.policy;
        stats->baseline += terms.baseline;
        stats->entropy += terms.entropy;
        stats->kl += terms.kl;
        stats->clipped += terms.clipped;
        stats->weight += terms.weight;
    }
}

void farm_log_prob_rows(const float *logits, const int32_t *action, int rows, int actions, float *out) {
    assert(rows >= 0 && actions >= 1);
    for (int row = 0; row < rows; row++)
        out[row] = farm_log_prob_row(logits + (size_t)row * (size_t)actions, actions, action[row]);
}
