//! Reads what was traced in earlier runs, for policies that predict: text as AGIOS writes it, a
//! line for each request, with nanoseconds since the start, file, R or W, offset and length.

use crate::files;
use tidegate_sched::{Direction, FileId, Observed};

/// Bytes of a trace beyond which it is refused: a few hundred million requests.
const BYTES_MAX: u64 = 16 << 30;

/// The requests of one trace. `file_number` makes the number of a file of its name.
pub(crate) fn read(path: &str, file_number: fn(&[u8]) -> u64) -> Result<Vec<Observed>, String> {
    let text = files::read(path, BYTES_MAX).map_err(|error| format!("{path}: {error}"))?;
    let lines = text.split(|&byte| byte == b'\n').enumerate();
    lines
        .filter(|(_, line)| !line.is_empty())
        .map(|(number, line)| {
            observed(line, file_number).ok_or_else(|| {
                format!(
                    "{path}:{}: not nanoseconds, file, R or W, offset and length with tabs between",
                    number + 1
                )
            })
        })
        .collect()
}

fn observed(line: &[u8], file_number: fn(&[u8]) -> u64) -> Option<Observed> {
    // A name may have tabs in it, so it is what the other fields leave.
    let (at_ns, rest) = cut(line, line.iter().position(|&byte| byte == b'\t')?);
    let (rest, len) = cut(rest, rest.iter().rposition(|&byte| byte == b'\t')?);
    let (rest, offset) = cut(rest, rest.iter().rposition(|&byte| byte == b'\t')?);
    let (name, kind) = cut(rest, rest.iter().rposition(|&byte| byte == b'\t')?);
    let direction = match kind {
        b"R" => Direction::Read,
        b"W" => Direction::Write,
        _ => return None,
    };
    Some(Observed {
        file: FileId(file_number(name)),
        direction,
        offset: number(offset)?,
        len: number(len)?,
        at_ns: number(at_ns)?,
    })
}

fn cut(line: &[u8], tab: usize) -> (&[u8], &[u8]) {
    (&line[..tab], &line[tab + 1..])
}

fn number(digits: &[u8]) -> Option<u64> {
    std::str::from_utf8(digits).ok()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::hash::hash;

    #[test]
    fn a_line_is_a_request() {
        let observed = observed(b"17\ta\tb\tW\t4096\t512", hash).unwrap();
        assert_eq!(observed.file, FileId(hash(b"a\tb")));
        assert_eq!(observed.direction, Direction::Write);
        let numbers = (observed.at_ns, observed.offset, observed.len);
        assert_eq!(numbers, (17, 4096, 512));
        for wrong in [
            "",
            "17",
            "17\ta\tW\t4096",
            "17\ta\tX\t1\t1",
            "-1\ta\tR\t1\t1",
        ] {
            assert_eq!(super::observed(wrong.as_bytes(), hash), None, "{wrong:?}");
        }
    }
}
