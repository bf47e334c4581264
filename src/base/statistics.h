// Order statistics of samples. Pure functions: they allocate nothing and keep no state.
#ifndef FARM_BASE_STATISTICS_H
#define FARM_BASE_STATISTICS_H

#include <stddef.h>

// Sorts in place, ascending. The samples hold no NAN.
void farm_sort(double *samples, size_t count);

// The value below which `share` (0 to 1) of the sorted samples lie, as R's quantile() by default. NAN without samples.
double farm_quantile(const double *sorted, size_t count, double share);

// Sorts in place; returns the median and *spread (unless NULL): (75th - 25th percentile) / median. No samples: NAN.
double farm_median(double *samples, size_t count, double *spread);

#endif
