// See statistics.h.
#include "base/statistics.h"

#include <math.h>
#include <stdlib.h>

static int compare(const void *a, const void *b) {
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

void farm_sort(double *samples, size_t count) {
    if (count) qsort(samples, count, sizeof *samples, compare);
}

double farm_quantile(const double *sorted, size_t count, double share) {
    if (!count) return (double)NAN;
    const double at = share * (double)(count - 1);
    const size_t below = (size_t)at;
    if (below + 1 >= count) return sorted[count - 1];
    return sorted[below] + (at - (double)below) * (sorted[below + 1] - sorted[below]);
}

double farm_median(double *samples, size_t count, double *spread) {
    farm_sort(samples, count);
    const double median = farm_quantile(samples, count, 0.5);
    if (spread) *spread = (farm_quantile(samples, count, 0.75) - farm_quantile(samples, count, 0.25)) / median;
    return median;
}
