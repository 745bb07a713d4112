//! CRC-32C (Castagnoli): of bytes in hardware, of zeros by arithmetic.
//!
//! `crc-fast` runs at 60 GB/s on a cache-hot buffer where the CPU has AVX-512 carry-less
//! multiplication, against 30 GB/s for the three-way SSE 4.2 loop of `crc32c`.

use crc_fast::{CrcAlgorithm, Digest};

/// The polynomial, x^0 in the highest bit.
const POLYNOMIAL: u32 = 0x82f6_3b78;
/// x^8: what one zero byte multiplies the state by.
const X8: u32 = 1 << (31 - 8);

/// CRC-32C of the bytes that gave `crc`, followed by `data`. Start with 0.
pub fn crc32c_update(crc: u32, data: &[u8]) -> u32 {
    // The checksum is the complement of the register.
    let mut digest = Digest::new_with_init_state(CrcAlgorithm::Crc32Iscsi, u64::from(!crc));
    digest.update(data);
    digest.finalize() as u32
}

/// CRC-32C of the bytes that gave `crc`, followed by `zeros` zero bytes. Takes at most 64 steps, so
/// that a hole of any length costs nothing.
pub fn crc32c_append_zeros(crc: u32, zeros: u64) -> u32 {
    let (mut register, mut factor, mut left) = (!crc, X8, zeros);
    while left != 0 {
        if left & 1 != 0 {
            register = multiply(register, factor);
        }
        factor = multiply(factor, factor);
        left >>= 1;
    }
    !register
}

/// Product of two polynomials over GF(2), modulo the CRC's.
fn multiply(a: u32, mut b: u32) -> u32 {
    let mut product = 0;
    for power in 0..32 {
        if a & (1 << (31 - power)) != 0 {
            product ^= b;
        }
        b = (b >> 1) ^ if b & 1 != 0 { POLYNOMIAL } else { 0 };
    }
    product
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn known_values() {
        assert_eq!(crc32c_update(0, b""), 0);
        assert_eq!(crc32c_update(0, b"123456789"), 0xe306_9283);
        assert_eq!(crc32c_update(0, &[0; 32]), 0x8a91_36aa);
        assert_eq!(crc32c_append_zeros(0, 32), 0x8a91_36aa);
    }

    #[test]
    fn agrees_with_another_implementation_at_every_length_and_split() {
        let data: Vec<u8> = (0..5000u32)
            .map(|i| (i.wrapping_mul(2654435761) >> 13) as u8)
            .collect();
        for len in (0..300).chain([1023, 1024, 1025, 4096, 5000]) {
            let whole = crc32c::crc32c(&data[..len]);
            assert_eq!(crc32c_update(0, &data[..len]), whole);
            let at = len / 3;
            let head = crc32c_update(0, &data[..at]);
            assert_eq!(crc32c_update(head, &data[at..len]), whole);
        }
    }

    #[test]
    fn zeros_by_arithmetic_are_zeros_by_bytes() {
        let head = crc32c_update(0, b"forebay");
        for zeros in [0usize, 1, 2, 7, 8, 255, 4096, 100_003] {
            let slow = crc32c_update(head, &vec![0; zeros]);
            assert_eq!(crc32c_append_zeros(head, zeros as u64), slow, "{zeros}");
        }
        // Two halves of more than can be tried byte by byte.
        let half = crc32c_append_zeros(head, 1 << 62);
        assert_eq!(
            crc32c_append_zeros(half, 1 << 62),
            crc32c_append_zeros(head, 1 << 63)
        );
    }
}
