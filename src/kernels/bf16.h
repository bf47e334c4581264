// bf16, the upper half of an f32: conversion, and arrays of either. Pure; CUDA kernels call the reading ones.
#ifndef FARM_KERNELS_BF16_H
#define FARM_KERNELS_BF16_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "kernels/device.h"

// Rounds to the nearest bf16, ties to even; NaN stays NaN.
static inline uint16_t farm_bf16(float x) {
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    if (x != x) return (uint16_t)(bits >> 16 | 0x40);
    return (uint16_t)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

static inline FARM_HD float farm_bf16_value(uint16_t x) {
    const uint32_t bits = (uint32_t)x << 16;
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

// Number i of an array of bf16 or f32.
static inline FARM_HD float farm_number_at(const void *x, bool bf16, size_t i) {
    return bf16 ? farm_bf16_value(((const uint16_t *)x)[i]) : ((const float *)x)[i];
}

static inline void farm_number_put(void *x, bool bf16, size_t i, float value) {
    if (bf16)
        ((uint16_t *)x)[i] = farm_bf16(value);
    else
        ((float *)x)[i] = value;
}

#endif
