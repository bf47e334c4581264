// The qualifier of functions that the CPU and a CUDA kernel share. Headers of this folder hold the arithmetic of one
// element, one row or one column as `static inline FARM_HD` functions; the .c files loop over them, and so do the
// kernels in cuda/. Such a header must compile as C17 and as CUDA C++: no restrict, no compound literals, no designated
// initialisers. This is the only feature #ifdef of the sources.
#ifndef FARM_KERNELS_DEVICE_H
#define FARM_KERNELS_DEVICE_H

#ifdef __CUDACC__
#define FARM_HD __host__ __device__
#else
#define FARM_HD
#endif

#endif
