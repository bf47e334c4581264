// Order statistics of samples. Pure functions: they allocate nothing and keep no state.
#ifndef FARM_BASE_STATISTICS_H
#define FARM_BASE_STATISTICS_H

#include <stddef.h>

// Sorts in place, ascending. The samples hold no NAN.
void farm_sort(double *samples, size_t count);

// The value below which `share` (0 to 1) of the sorted samples lie, interpolated between two neighbours as R's
// quantile() does by default. NAN without samples.
double farm_quantile(const double *sorted, size_t count, double share);

// Sorts in place and returns the median; *spread (unless NULL) receives (75th - 25th percentile) / median. NAN without
// samples.
double farm_median(double *samples, size_t count, double *spread);

#endif
