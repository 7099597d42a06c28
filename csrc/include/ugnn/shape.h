// How a row of columns is held in registers: kVecs vectors of kLanes values, chosen once for a width. Only the last
// vector may have lanes that are no columns; the compiler splits vectors that are wider than the CPU's.
#pragma once

namespace ugnn {
namespace UGNN_ISA {

// Columns are cut into slices of at most kMaxWidth: two sums of such a row fit into the vector registers. Double is
// there to check the others, and gets few shapes.
#if defined(UGNN_ISA_avx512)
template <class T>
constexpr int kMaxWidth = 64;
#elif defined(UGNN_ISA_avx2)
template <class T>
constexpr int kMaxWidth = 48;
#else
template <class T>
constexpr int kMaxWidth = 16;
#endif
template <>
constexpr int kMaxWidth<double> = 8;
// The same where memory counts more than time: a row is one cache line, c_j behind 16-bit values.
template <class T>
constexpr int kNarrowWidth = sizeof(T) == 2 ? kMaxWidth<T> < 30 ? kMaxWidth<T> : 30 : 64 / sizeof(T);

// values of a vector register
#if defined(UGNN_ISA_avx512)
template <class A>
constexpr int kVectorLanes = 64 / sizeof(A);
#elif defined(UGNN_ISA_avx2)
template <class A>
constexpr int kVectorLanes = 32 / sizeof(A);
#else
template <class A>
constexpr int kVectorLanes = 16 / sizeof(A);
#endif

// Values that a slice of width columns takes in a table. With AVX-512, 16-bit rows are whole vectors, so that no load
// touches two cache lines; seven half vectors of floats are slower than four whole ones, three or five are not.
template <class T>
int padded(int width) {
  if (width <= 2) return width;
  if (width <= 4) return 4;
  if (width <= 8) return 8;
#if defined(UGNN_ISA_avx512)
  if (sizeof(T) == 2 || width > 48) return (width + 15) / 16 * 16;
#endif
  return (width + 7) / 8 * 8;
}

// The same where c_j may lie behind the columns: as a float it takes the place of two 16-bit values.
// Every vector of a row has a column.
template <class T>
int padded_for_c(int width) {
  constexpr int kMost = kVectorLanes<float> == 16 ? 8 : 6;
  return sizeof(T) == 2 && width > 2 && width <= kMost ? padded<T>(width + 2) : padded<T>(width);
}

template <int kLanesOf, int kVecsOf>
struct Shape {
  static constexpr int kLanes = kLanesOf, kVecs = kVecsOf;
};

template <class Body>
auto for_wide_shape(int ld, Body body) {
#if defined(UGNN_ISA_avx512)
  if (ld == 8) return body(Shape<8, 1>{});
  if (ld == 16) return body(Shape<16, 1>{});
  if (ld == 24) return body(Shape<8, 3>{});
  if (ld == 32) return body(Shape<16, 2>{});
  if (ld == 40) return body(Shape<8, 5>{});
  if (ld == 48) return body(Shape<16, 3>{});
  return body(Shape<16, 4>{});
#elif defined(UGNN_ISA_avx2)
  if (ld == 8) return body(Shape<8, 1>{});
  if (ld == 16) return body(Shape<8, 2>{});
  if (ld == 24) return body(Shape<8, 3>{});
  if (ld == 32) return body(Shape<8, 4>{});
  if (ld == 40) return body(Shape<8, 5>{});
  return body(Shape<8, 6>{});
#else
  if (ld == 8) return body(Shape<8, 1>{});
  return body(Shape<8, 2>{});
#endif
}

// body(Shape<...>{}) for a padded width of at least 4
template <class T, class Body>
auto for_vector_shape(int ld, Body body) {
  if (ld == 4) return body(Shape<4, 1>{});
  if constexpr (kMaxWidth<T> == 8) {
    return body(Shape<8, 1>{});
  } else {
    return for_wide_shape(ld, body);
  }
}

// body(Shape<...>{}) for a padded width
template <class T, class Body>
auto for_shape(int ld, Body body) {
  if (ld == 1) return body(Shape<1, 1>{});
  if (ld == 2) return body(Shape<1, 2>{});
  return for_vector_shape<T>(ld, body);
}
}  // namespace UGNN_ISA
}  // namespace ugnn
