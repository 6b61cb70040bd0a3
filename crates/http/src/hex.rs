//! Hexadecimal digits.

/// The digits of a number, with leading zeros. By hand: every response has a request id and most have a tag, and
/// `format!` costs several times as much.
pub(crate) fn hex_digits(number: u128) -> [u8; 32] {
    let mut digits = [0; 32];
    for (pair, byte) in digits.chunks_exact_mut(2).zip(number.to_be_bytes()) {
        pair[0] = b"0123456789abcdef"[usize::from(byte >> 4)];
        pair[1] = b"0123456789abcdef"[usize::from(byte & 15)];
    }
    digits
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_digits_are_those_of_the_standard_library() {
        for number in [0, 1, 0xabc, u128::MAX, u128::MAX / 3, 0x0123_4567_89ab_cdef] {
            assert_eq!(hex_digits(number), *format!("{number:032x}").as_bytes());
        }
    }
}
