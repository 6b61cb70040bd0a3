//! Mutations of a JSON body: constructs on which parsers differ, sizes at the limit, and random bytes.

use super::mutate::{around, bytes};
use crate::random::Random;

/// Tokens that replace a value, or are inserted anywhere.
const TOKENS: [&[u8]; 34] = [
    b"null",
    b"true",
    b"[]",
    b"{}",
    b"\"\"",
    b"0",
    b"-0",
    b"00",
    b"1e400",
    b"1e-400",
    b"-",
    b"0x10",
    b"NaN",
    b"1.5",
    b"9223372036854775808",
    b"1e99999999999999999999",
    b"7.0",
    b"\"7\"",
    b"\xef\xbb\xbf",
    b"\"\\ud800\"",
    b"\"\\udc00\\ud800\"",
    b"\"\\u0000\"",
    b"\"\\u\"",
    b"\"\x00\"",
    b"\xff",
    b"\"\xed\xa0\x80\"",
    b"\"\xc0\xaf\"",
    b",",
    b":",
    b"/*x*/",
    b"{\"sold\":null}",
    b"[\"Rex\",1]",
    b" \t\r\n",
    b"\"\\n\"",
];

pub(super) fn json(random: &mut Random, body: &mut Vec<u8>) {
    match random.index(14) {
        0 => body.clear(),
        1 => *body = random.pick(&TOKENS).to_vec(),
        2 => {
            let (open, close) = *random.pick(&[("[", "]"), ("{\"a\":", "}"), ("[{\"name\":", "}]")]);
            let depth = random.index(2_500);
            *body = format!("{}1{}", open.repeat(depth), close.repeat(depth)).into();
        }
        3 => {
            // White space up to about the size limit.
            let room = around(random, 16 * 1024).saturating_sub(body.len());
            body.splice(0..0, vec![b' '; room]);
        }
        4 => {
            let length = *random.pick(&[254, 255, 256, 16_300, 16_400, 70_000]);
            let name = random.pick(&["a", "é", "🐕", "\\u00e9", " "]).repeat(length);
            *body = format!(r#"{{"name":"{name}","categoryId":1}}"#).into();
        }
        5 => {
            let digits = *random.pick(&["0", "9", "1"]);
            let number = format!("1{}{}", random.pick(&["", "."]), digits.repeat(random.index(10_000)));
            replace_value(body, number.as_bytes());
        }
        6 => {
            let member = *random.pick(&[
                r#""name":"twice","#,
                r#""id":7,"#,
                r#""nam\u0065":"x","#,
                r#""nmae":"x","#,
                r#""":1,"#,
                r#""petId":1,"#,
                r#""__proto__":{},"#,
                r#""a~/b":1,"#,
                r#""status":"sold","#,
            ]);
            let place = body.iter().position(|byte| *byte == b'{').map_or(0, |place| place + 1);
            body.splice(place..place, member.bytes());
        }
        7 => body.extend(random.pick(&TOKENS).to_vec()),
        8 => {
            let members: Vec<_> = (0..random.index(700)).map(|number| format!("\"m{number}\":1")).collect();
            *body = format!("{{{}}}", members.join(",")).into();
        }
        9 | 10 => {
            let value = *random.pick(&TOKENS);
            replace_value(body, value);
        }
        _ => bytes(random, body),
    }
}

/// Replaces the last value.
fn replace_value(body: &mut Vec<u8>, value: &[u8]) {
    let start = body.iter().rposition(|byte| *byte == b':').map_or(0, |place| place + 1);
    let end = body.iter().rposition(|byte| *byte == b'}').unwrap_or(body.len()).max(start);
    body.splice(start..end, value.iter().copied());
}
