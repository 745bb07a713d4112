//! Changes of inputs: bits, bytes, numbers, lengths, ranges, words, and parts of other inputs.

use crate::random::Random;

/// Longer ones find nothing that these do not, and take their time.
pub const INPUT_BYTES_MAX: usize = 8192;

/// Numbers that programs get wrong.
const NUMBERS: [u64; 16] = [
    0,
    1,
    2,
    127,
    128,
    255,
    256,
    0x7fff,
    0xffff,
    0x10_0000,
    0x7fff_ffff,
    0xffff_ffff,
    i64::MAX as u64,
    1 << 63,
    u64::MAX - 1,
    u64::MAX,
];
/// The same in text.
const DIGITS: [&str; 14] = [
    "0",
    "-1",
    "1",
    "255",
    "65536",
    "4294967296",
    "9223372036854775807",
    "-9223372036854775808",
    "18446744073709551616",
    "1e308",
    "1e-320",
    "nan",
    "inf",
    "0.1",
];

/// Changes an input a few times. `words` are of the target's language, `others` are inputs to take
/// parts of.
pub fn mutate(random: &mut Random, input: &mut Vec<u8>, words: &[&str], others: &[Vec<u8>]) {
    for _ in 0..=random.below(4) {
        once(random, input, words, others);
    }
    input.truncate(INPUT_BYTES_MAX);
}

fn once(random: &mut Random, input: &mut Vec<u8>, words: &[&str], others: &[Vec<u8>]) {
    let at = random.below(input.len() + 1);
    let end = (at + 1 + random.below(16)).min(input.len());
    match random.below(14) {
        0 if at < input.len() => input[at] ^= 1 << random.below(8),
        1 if at < input.len() => input[at] = random.number() as u8,
        2 if at < input.len() => {
            input[at] = *random.of(&[0, 1, 0x7f, 0x80, 0xff, b'\n', b'/', b'"'])
        }
        3 => input.truncate(at),
        4 => drop(input.drain(at..end)),
        5 => {
            let part = input[at..end].to_vec();
            for _ in 0..=random.below(32) {
                input.splice(at..at, part.iter().copied());
            }
        }
        6 => {
            let bytes: Vec<u8> = (0..=random.below(8))
                .map(|_| random.number() as u8)
                .collect();
            input.splice(at..at, bytes);
        }
        7 => overwrite(input, at, &number(random)),
        8 => drop(input.splice(at..(at + 1).min(input.len()), varint(*random.of(&NUMBERS)))),
        9 | 10 if !words.is_empty() => drop(input.splice(at..at, random.of(words).bytes())),
        11 => replace_digits(random, input, at),
        12 if !others.is_empty() => {
            let other = random.of(others);
            let from = random.below(other.len() + 1);
            input.truncate(at);
            input.extend_from_slice(&other[from..]);
        }
        _ if !others.is_empty() => {
            let other = random.of(others);
            let from = random.below(other.len() + 1);
            let to = (from + 1 + random.below(64)).min(other.len());
            input.splice(at..at, other[from..to].iter().copied());
        }
        _ => input.push(random.number() as u8),
    }
}

fn overwrite(input: &mut [u8], at: usize, bytes: &[u8]) {
    let room = input.len() - at;
    let bytes = &bytes[..bytes.len().min(room)];
    input[at..at + bytes.len()].copy_from_slice(bytes);
}

/// A length or number of fixed size, little or big end first.
fn number(random: &mut Random) -> Vec<u8> {
    let mut bytes = random.of(&NUMBERS).to_le_bytes().to_vec();
    bytes.truncate(*random.of(&[2, 4, 8]));
    if random.below(4) == 0 {
        bytes.reverse();
    }
    bytes
}

/// As postcard writes numbers and lengths.
fn varint(mut number: u64) -> Vec<u8> {
    let mut bytes = Vec::new();
    while number >= 0x80 {
        bytes.push(number as u8 | 0x80);
        number >>= 7;
    }
    bytes.push(number as u8);
    bytes
}

fn replace_digits(random: &mut Random, input: &mut Vec<u8>, from: usize) {
    let Some(at) = input[from..].iter().position(u8::is_ascii_digit) else {
        return;
    };
    let at = from + at;
    let digits = input[at..]
        .iter()
        .take_while(|b| b.is_ascii_digit())
        .count();
    input.splice(at..at + digits, random.of(&DIGITS).bytes());
}
