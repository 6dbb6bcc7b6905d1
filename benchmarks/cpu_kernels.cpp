// Gradients of depthwise convolutions, and batch normalisation with ReLU6, for training in bfloat16
// on a CPU with AVX-512: arrays are channels last, sums are floats. What they compute is what
// PyTorch computes; cpu_kernels.py compares. Built by cpu_kernels.py, one thread.

#include <immintrin.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <vector>

using bf16 = uint16_t;

static inline __m512 load(const bf16* from) {  // 16 numbers
    __m256i raw = _mm256_loadu_si256((const __m256i*)from);
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(raw), 16));
}

static inline __m512 load_half(const bf16* from) {  // 8 numbers and 8 zeros
    __m256i raw = _mm256_zextsi128_si256(_mm_loadu_si128((const __m128i*)from));
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(raw), 16));
}

static inline void store(bf16* to, __m512 value) {
    _mm256_storeu_si256((__m256i*)to, (__m256i)_mm512_cvtneps_pbh(value));
}

static inline void store_half(bf16* to, __m512 value) {
    _mm_storeu_si128((__m128i*)to, _mm256_castsi256_si128((__m256i)_mm512_cvtneps_pbh(value)));
}

// ---- depthwise convolutions; the channels C are a multiple of 16, weights (K, K, C) ----

// Gradient of the input (N, H, W, C) by that of the output (N, Ho, Wo, C).
extern "C" void grad_input(bf16* dx, const bf16* dy, const float* weight, int N, int H, int W,
                           int C, int Ho, int Wo, int K, int S, int P) {
    for (int n = 0; n < N; n++)
        for (int h = 0; h < H; h++)
            for (int w = 0; w < W; w++) {
                int rows[8], down[8], columns[8], across[8], many_rows = 0, many_columns = 0;
                for (int i = 0; i < K; i++) {
                    int t = h + P - i;
                    if (t >= 0 && t % S == 0 && t / S < Ho)
                        rows[many_rows] = t / S, down[many_rows++] = i;
                }
                for (int j = 0; j < K; j++) {
                    int t = w + P - j;
                    if (t >= 0 && t % S == 0 && t / S < Wo)
                        columns[many_columns] = t / S, across[many_columns++] = j;
                }
                bf16* out = dx + (((size_t)n * H + h) * W + w) * C;
                int c = 0;
                for (; c + 48 <= C; c += 48) {  // three sums at a time, or each waits for itself
                    __m512 a = _mm512_setzero_ps(), b = a, d = a;
                    for (int i = 0; i < many_rows; i++)
                        for (int j = 0; j < many_columns; j++) {
                            const bf16* y = dy + (((size_t)n * Ho + rows[i]) * Wo + columns[j]) * C;
                            const float* k = weight + (down[i] * K + across[j]) * (size_t)C;
                            a = _mm512_fmadd_ps(load(y + c), _mm512_loadu_ps(k + c), a);
                            b = _mm512_fmadd_ps(load(y + c + 16), _mm512_loadu_ps(k + c + 16), b);
                            d = _mm512_fmadd_ps(load(y + c + 32), _mm512_loadu_ps(k + c + 32), d);
                        }
                    store(out + c, a), store(out + c + 16, b), store(out + c + 32, d);
                }
                for (; c < C; c += 16) {
                    __m512 a = _mm512_setzero_ps();
                    for (int i = 0; i < many_rows; i++)
                        for (int j = 0; j < many_columns; j++) {
                            const bf16* y = dy + (((size_t)n * Ho + rows[i]) * Wo + columns[j]) * C;
                            const float* k = weight + (down[i] * K + across[j]) * (size_t)C;
                            a = _mm512_fmadd_ps(load(y + c), _mm512_loadu_ps(k + c), a);
                        }
                    store(out + c, a);
                }
            }
}

// Some rows of taps at a time, of one image, so that sums stay in registers and inputs in the cache.
template <int K, int ROWS>
static void grad_weight_rows(float* dw, const bf16* x, const bf16* dy, int H, int W, int C, int Ho,
                             int Wo, int S, int P, int first, int c) {
    __m512 sum[ROWS][K];
    for (int i = 0; i < ROWS; i++)
        for (int j = 0; j < K; j++) sum[i][j] = _mm512_setzero_ps();
    for (int ho = 0; ho < Ho; ho++)
        for (int wo = 0; wo < Wo; wo++) {
            __m512 y = load(dy + ((size_t)ho * Wo + wo) * C + c);
            int top = ho * S - P + first, left = wo * S - P;
            if (left >= 0 && left + K <= W && top >= 0 && top + ROWS <= H) {
                const bf16* from = x + ((size_t)top * W + left) * C + c;
#pragma GCC unroll 3
                for (int i = 0; i < ROWS; i++)
#pragma GCC unroll 5
                    for (int j = 0; j < K; j++)
                        sum[i][j] =
                            _mm512_fmadd_ps(y, load(from + ((size_t)i * W + j) * C), sum[i][j]);
                continue;
            }
            for (int i = 0; i < ROWS; i++)
                for (int j = 0; j < K; j++) {
                    int h = top + i, w = left + j;
                    if (h < 0 || h >= H || w < 0 || w >= W) continue;
                    const bf16* from = x + ((size_t)h * W + w) * C + c;
                    sum[i][j] = _mm512_fmadd_ps(y, load(from), sum[i][j]);
                }
        }
    for (int i = 0; i < ROWS; i++)
        for (int j = 0; j < K; j++) {
            float* to = dw + ((first + i) * K + j) * (size_t)C + c;
            _mm512_storeu_ps(to, _mm512_add_ps(_mm512_loadu_ps(to), sum[i][j]));
        }
}

extern "C" void grad_weight(float* dw, const bf16* x, const bf16* dy, int N, int H, int W, int C,
                            int Ho, int Wo, int K, int S, int P) {
    memset(dw, 0, sizeof(float) * K * K * C);
    for (int n = 0; n < N; n++, x += (size_t)H * W * C, dy += (size_t)Ho * Wo * C)
        for (int c = 0; c < C; c += 16) {
            if (K == 3) grad_weight_rows<3, 3>(dw, x, dy, H, W, C, Ho, Wo, S, P, 0, c);
            if (K == 5) grad_weight_rows<5, 3>(dw, x, dy, H, W, C, Ho, Wo, S, P, 0, c);
            if (K == 5) grad_weight_rows<5, 2>(dw, x, dy, H, W, C, Ho, Wo, S, P, 3, c);
        }
}

// 3 x 3, stride 1, padding 1, four pixels at a time: for few channels, where others are slow.
extern "C" void convolve(bf16* out, const bf16* in, const float* weight, int N, int H, int W,
                         int C) {
    for (int n = 0; n < N; n++)
        for (int h = 0; h < H; h++)
            for (int c = 0; c < C; c += 16) {
                int top = std::max(0, 1 - h), bottom = std::min(3, H + 1 - h);
                bf16* row = out + ((size_t)n * H + h) * W * C + c;
                for (int w = 0; w < W;) {
                    if (w > 0 && w + 5 <= W) {
                        __m512 sum[4];
                        for (auto& each : sum) each = _mm512_setzero_ps();
                        for (int i = top; i < bottom; i++) {
                            const bf16* from =
                                in + (((size_t)n * H + h + i - 1) * W + w - 1) * C + c;
                            __m512 there[6];
#pragma GCC unroll 6
                            for (int j = 0; j < 6; j++) there[j] = load(from + (size_t)j * C);
#pragma GCC unroll 3
                            for (int j = 0; j < 3; j++) {
                                __m512 k = _mm512_loadu_ps(weight + (i * 3 + j) * (size_t)C + c);
#pragma GCC unroll 4
                                for (int p = 0; p < 4; p++)
                                    sum[p] = _mm512_fmadd_ps(there[j + p], k, sum[p]);
                            }
                        }
                        for (int p = 0; p < 4; p++) store(row + (size_t)(w + p) * C, sum[p]);
                        w += 4;
                        continue;
                    }
                    __m512 sum = _mm512_setzero_ps();
                    for (int i = top; i < bottom; i++)
                        for (int j = 0; j < 3; j++) {
                            int at = w + j - 1;
                            if (at < 0 || at >= W) continue;
                            const bf16* from = in + (((size_t)n * H + h + i - 1) * W + at) * C + c;
                            const float* k = weight + (i * 3 + j) * (size_t)C + c;
                            sum = _mm512_fmadd_ps(load(from), _mm512_loadu_ps(k), sum);
                        }
                    store(row + (size_t)w * C, sum);
                    w++;
                }
            }
}

// ---- batch normalisation, and ReLU6 after it; the channels C are a multiple of 8 ----

static const long ROWS = 64;  // at a time, for the cache

// Runs BODY(c, LOAD, STORE, FULL) for all channels, 16 at a time and the last 8.
#define OVER_CHANNELS(BODY)                                  \
    for (int c = 0; c + 16 <= C; c += 16) {                  \
        BODY(c, load, store, 0xFFFF)                         \
    }                                                        \
    if (C % 16) {                                            \
        BODY(C - C % 16, load_half, store_half, 0xFF)        \
    }

extern "C" void norm_forward(bf16* z, const bf16* x, const float* weight, const float* bias,
                             float* mean, float* inverse, float* variance, long M, int C,
                             float eps, int relu6) {
    std::vector<double> sum(C, 0), square(C, 0);
    std::vector<float> first(C), gain(C), add(C);
    for (int c = 0; c < C; c++) {  // by the first row, squares are small and nothing cancels
        uint32_t bits = (uint32_t)x[c] << 16;
        memcpy(&first[c], &bits, 4);
    }
    for (long from = 0; from < M; from += ROWS) {
        long to = std::min(M, from + ROWS);
#define SUMS(c, LOAD, STORE, FULL)                                              \
    __m512 shift = _mm512_maskz_loadu_ps(FULL, &first[c]);                      \
    __m512 a = _mm512_setzero_ps(), b = a;                                      \
    for (long r = from; r < to; r++) {                                          \
        __m512 v = _mm512_sub_ps(LOAD(x + r * C + c), shift);                   \
        a = _mm512_add_ps(a, v), b = _mm512_fmadd_ps(v, v, b);                  \
    }                                                                           \
    float sums[16], squares[16];                                                \
    _mm512_storeu_ps(sums, a), _mm512_storeu_ps(squares, b);                    \
    for (int k = 0; k < 16 && c + k < C; k++)                                   \
        sum[c + k] += sums[k], square[c + k] += squares[k];
        OVER_CHANNELS(SUMS)
    }
    for (int c = 0; c < C; c++) {
        double middle = sum[c] / M;
        variance[c] = std::max(square[c] / M - middle * middle, 0.0);
        mean[c] = middle + first[c], inverse[c] = 1 / std::sqrt(variance[c] + eps);
        gain[c] = weight[c] * inverse[c], add[c] = bias[c] - mean[c] * gain[c];
    }
    // Of two numbers max and min give the second where one is NaN: so NaN stays.
    __m512 low = _mm512_set1_ps(relu6 ? 0.f : -INFINITY);
    __m512 high = _mm512_set1_ps(relu6 ? 6.f : INFINITY);
    for (long from = 0; from < M; from += ROWS) {
        long to = std::min(M, from + ROWS);
#define APPLY(c, LOAD, STORE, FULL)                                             \
    __m512 g = _mm512_maskz_loadu_ps(FULL, &gain[c]);                           \
    __m512 e = _mm512_maskz_loadu_ps(FULL, &add[c]);                            \
    for (long r = from; r < to; r++) {                                          \
        __m512 y = _mm512_fmadd_ps(LOAD(x + r * C + c), g, e);                  \
        STORE(z + r * C + c, _mm512_min_ps(high, _mm512_max_ps(low, y)));       \
    }
        OVER_CHANNELS(APPLY)
    }
}

// Where ReLU6 has a slope, by its input.
static inline __mmask16 inside(__m512 y, int relu6) {
    if (!relu6) return 0xFFFF;
    __mmask16 above = _mm512_cmp_ps_mask(y, _mm512_setzero_ps(), _CMP_GT_OQ);
    return _mm512_mask_cmp_ps_mask(above, y, _mm512_set1_ps(6.f), _CMP_LT_OQ);
}

extern "C" void norm_backward(bf16* dx, float* dw, float* db, const bf16* dz, const bf16* x,
                              const float* weight, const float* bias, const float* mean,
                              const float* inverse, long M, int C, int relu6) {
    std::vector<double> sum(C, 0), product(C, 0);
    std::vector<float> gain(C), add(C), slope(C), level(C);
    for (int c = 0; c < C; c++)
        gain[c] = weight[c] * inverse[c], add[c] = bias[c] - mean[c] * gain[c];
    for (long from = 0; from < M; from += ROWS) {
        long to = std::min(M, from + ROWS);
#define GRADIENT_SUMS(c, LOAD, STORE, FULL)                                     \
    __m512 g = _mm512_maskz_loadu_ps(FULL, &gain[c]);                           \
    __m512 e = _mm512_maskz_loadu_ps(FULL, &add[c]);                            \
    __m512 middle = _mm512_maskz_loadu_ps(FULL, mean + c);                      \
    __m512 a = _mm512_setzero_ps(), b = a;                                      \
    for (long r = from; r < to; r++) {                                          \
        __m512 v = LOAD(x + r * C + c);                                         \
        __mmask16 in = inside(_mm512_fmadd_ps(v, g, e), relu6);                 \
        __m512 d = _mm512_maskz_mov_ps(in, LOAD(dz + r * C + c));               \
        a = _mm512_add_ps(a, d);                                                \
        b = _mm512_fmadd_ps(d, _mm512_sub_ps(v, middle), b);                    \
    }                                                                           \
    float sums[16], products[16];                                               \
    _mm512_storeu_ps(sums, a), _mm512_storeu_ps(products, b);                   \
    for (int k = 0; k < 16 && c + k < C; k++)                                   \
        sum[c + k] += sums[k], product[c + k] += products[k];
        OVER_CHANNELS(GRADIENT_SUMS)
    }
    for (int c = 0; c < C; c++) {  // dx = gain d + slope x + level
        double along = product[c] * inverse[c], each = along / M * inverse[c];
        dw[c] = along, db[c] = sum[c];
        slope[c] = -gain[c] * each, level[c] = -gain[c] * (sum[c] / M - mean[c] * each);
    }
    for (long from = 0; from < M; from += ROWS) {
        long to = std::min(M, from + ROWS);
#define GRADIENT(c, LOAD, STORE, FULL)                                          \
    __m512 g = _mm512_maskz_loadu_ps(FULL, &gain[c]);                           \
    __m512 e = _mm512_maskz_loadu_ps(FULL, &add[c]);                            \
    __m512 s = _mm512_maskz_loadu_ps(FULL, &slope[c]);                          \
    __m512 l = _mm512_maskz_loadu_ps(FULL, &level[c]);                          \
    for (long r = from; r < to; r++) {                                          \
        __m512 v = LOAD(x + r * C + c);                                         \
        __mmask16 in = inside(_mm512_fmadd_ps(v, g, e), relu6);                 \
        __m512 d = _mm512_maskz_mov_ps(in, LOAD(dz + r * C + c));               \
        STORE(dx + r * C + c, _mm512_fmadd_ps(g, d, _mm512_fmadd_ps(s, v, l))); \
    }
        OVER_CHANNELS(GRADIENT)
    }
}
