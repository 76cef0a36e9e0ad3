//! Bytes of a keyboard as keys.

/// A key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Key {
    Char(char),
    Up,
    Down,
    Left,
    Right,
    PageUp,
    PageDown,
    Home,
    End,
    Tab,
    BackTab,
    Enter,
    Escape,
    Backspace,
    /// ^C
    Interrupt,
}

/// The keys of what was read at once. Unknown sequences are left out.
pub(crate) fn keys(bytes: &[u8]) -> Vec<Key> {
    let (mut rest, mut out) = (bytes, Vec::new());
    while let Some((first, after)) = rest.split_first() {
        rest = after;
        let key = match first {
            3 => Some(Key::Interrupt),
            b'\t' => Some(Key::Tab),
            b'\r' | b'\n' => Some(Key::Enter),
            8 | 127 => Some(Key::Backspace),
            0x1b => match rest.first() {
                Some(b'[' | b'O') => {
                    let body = &rest[1..];
                    // Parameters, then a final byte.
                    let len = body.iter().position(|byte| (0x40..=0x7e).contains(byte)).map_or(body.len(), |at| at + 1);
                    let (sequence, after) = body.split_at(len);
                    rest = after;
                    sequence_key(sequence)
                }
                _ => Some(Key::Escape),
            },
            0..0x20 => None,
            _ => {
                let text = &bytes[bytes.len() - rest.len() - 1..];
                let valid = match std::str::from_utf8(&text[..text.len().min(4)]) {
                    Ok(valid) => valid,
                    Err(error) => std::str::from_utf8(&text[..error.valid_up_to()]).unwrap_or_default(),
                };
                let c = valid.chars().next();
                rest = &text[c.map_or(1, char::len_utf8)..];
                c.filter(|c| !c.is_control()).map(Key::Char)
            }
        };
        out.extend(key);
    }
    out
}

fn sequence_key(sequence: &[u8]) -> Option<Key> {
    Some(match sequence {
        b"A" => Key::Up,
        b"B" => Key::Down,
        b"C" => Key::Right,
        b"D" => Key::Left,
        b"H" | b"1~" | b"7~" => Key::Home,
        b"F" | b"4~" | b"8~" => Key::End,
        b"5~" => Key::PageUp,
        b"6~" => Key::PageDown,
        b"Z" => Key::BackTab,
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_read_from_what_terminals_send() {
        let all = keys(b"q\x1b[A\x1bOB\x1b[5~\t\x1b[Z\r\x7f\x03");
        let expected = [
            Key::Char('q'),
            Key::Up,
            Key::Down,
            Key::PageUp,
            Key::Tab,
            Key::BackTab,
            Key::Enter,
            Key::Backspace,
            Key::Interrupt,
        ];
        assert_eq!(all, expected);
        assert_eq!(keys("é漢".as_bytes()), [Key::Char('é'), Key::Char('漢')]);
        assert_eq!(keys(b"\x1b"), [Key::Escape]);
        assert_eq!(keys(b"\x1b[38;5;1mx"), [Key::Char('x')]);
    }

    #[test]
    fn no_bytes_are_a_panic_or_read_for_ever() {
        for a in 0..=255u8 {
            for b in [0, 3, 0x1b, b'[', b'O', b'~', 0x80, 0xc3, 0xe6, 0xff] {
                let _ = keys(&[a, b]);
                let _ = keys(&[0x1b, b'[', a, b]);
                let _ = keys(&[a, b, 0xa9]);
            }
        }
    }
}
