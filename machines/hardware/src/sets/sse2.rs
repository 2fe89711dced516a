//! Comparing the words of a set four at a time. The compiler does not find this by itself: it turns
//! a mask of comparisons back into one comparison after the other.
#![allow(unsafe_code)]

use std::arch::x86_64::{
    _mm_and_si128, _mm_cmpeq_epi32, _mm_movemask_epi8, _mm_packs_epi16, _mm_packs_epi32,
    _mm_set_epi32, _mm_set1_epi32, _mm_setzero_si128,
};

/// A bit for each of 16 words, one where it equals `clean` but for its lowest bit.
#[inline(always)]
pub(super) fn matches_by_four<const N: usize>(set: &[u32; N], clean: u32) -> u32 {
    const { assert!(N == 16) };
    let Ok(set) = set.as_slice().try_into() else { return 0 };
    // SAFETY: needs SSE2 and nothing else; every x86-64 processor has it.
    unsafe { compare(set, clean) }
}

#[target_feature(enable = "sse2")]
#[inline]
fn compare(set: &[u32; 16], clean: u32) -> u32 {
    let (clean, tags) = (_mm_set1_epi32(clean as i32), _mm_set1_epi32(!1));
    let mut equal = [_mm_setzero_si128(); 4];
    for (equal, four) in equal.iter_mut().zip(set.chunks_exact(4)) {
        let [a, b, c, d] = [four[0] as i32, four[1] as i32, four[2] as i32, four[3] as i32];
        *equal = _mm_cmpeq_epi32(_mm_and_si128(_mm_set_epi32(d, c, b, a), tags), clean);
    }
    // Narrowed to a byte for each word, then to a bit.
    let low = _mm_packs_epi32(equal[0], equal[1]);
    let high = _mm_packs_epi32(equal[2], equal[3]);
    _mm_movemask_epi8(_mm_packs_epi16(low, high)) as u32
}
