#pragma once

void block_sums(const float* in, float* out, int blocks, int stride, bool barrier);
void half_waits();
