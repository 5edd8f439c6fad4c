//! Paths as the texts that they are: no call to the kernel, no memory of its own.

use libc::c_char;

/// The bytes of a path after a prefix, if the path has it: with no slash before them.
pub(crate) fn below<'a>(path: &'a [u8], prefix: &[u8]) -> Option<&'a [u8]> {
    let mut left = path;
    for byte in prefix {
        left = left.strip_prefix(std::slice::from_ref(byte))?;
        if *byte == b'/' {
            left = after_slashes(left);
        }
    }
    match left.first() {
        None => Some(left),
        Some(b'/') => Some(after_slashes(left)),
        // The whole root.
        Some(_) if prefix == b"/" => Some(left),
        Some(_) => None,
    }
}

/// What comes after slashes and components `.`.
fn after_slashes(mut path: &[u8]) -> &[u8] {
    loop {
        path = match path {
            [b'/', rest @ ..] => rest,
            [b'.'] | [b'.', b'/', ..] => &path[1..],
            _ => return path,
        };
    }
}

/// Whether a path never climbs above where it begins, as if there were no links.
pub(crate) fn stays(path: &[u8]) -> bool {
    let mut depth = 0u32;
    path.split(|byte| *byte == b'/').all(|part| match part {
        b"" | b"." => true,
        b".." => {
            let is_inside = depth > 0;
            depth = depth.saturating_sub(1);
            is_inside
        }
        _ => {
            depth += 1;
            true
        }
    })
}

/// Whether the bytes of a string begin as a path does that has this prefix. Reads no byte after the
/// first one that differs.
///
/// # Safety
/// `text` is a string.
pub(crate) unsafe fn begins(text: *const c_char, prefix: &[u8]) -> bool {
    let mut at = text.cast::<u8>();
    // SAFETY: it goes on only while the byte before was none that ends the string.
    unsafe {
        for byte in prefix {
            if *at != *byte {
                return false;
            }
            at = at.add(1);
            while *byte == b'/' && (*at == b'/' || (*at == b'.' && *at.add(1) == b'/')) {
                at = at.add(1);
            }
        }
        matches!(*at, 0 | b'/')
    }
}

/// What is left of a relative path after its first component, if that is `..`.
pub(crate) fn climb(path: &[u8]) -> Option<&[u8]> {
    match after_slashes(path) {
        [b'.', b'.'] => Some(&[]),
        [b'.', b'.', rest @ ..] if rest.starts_with(b"/") => Some(after_slashes(rest)),
        _ => None,
    }
}

/// Writes a relative path after a directory's; returns the length. That one has no links, so `..`
/// at the beginning of the path takes away its last components, down to the root.
pub(crate) fn absolute(mut here: &[u8], mut path: &[u8], whole: &mut [u8]) -> Option<usize> {
    while let Some(rest) = climb(path) {
        let last = here.iter().rposition(|byte| *byte == b'/');
        (here, path) = (&here[..last.unwrap_or(0)], rest);
    }
    path = after_slashes(path);
    let here = if here == b"/" { &[] } else { here };
    let len = here.len() + 1 + path.len();
    let room = whole.get_mut(..len)?;
    room[..here.len()].copy_from_slice(here);
    room[here.len()] = b'/';
    room[here.len() + 1..].copy_from_slice(path);
    Some(len)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn relative_names_begin_where_the_process_works() {
        type Case<'a> = (&'a [u8], &'a [u8], Option<&'a [u8]>);
        let pairs: [Case<'_>; 8] = [
            (b"/work", b"data/f", Some(b"/work/data/f")),
            (b"/work", b"./data/f", Some(b"/work/data/f")),
            (b"/work/run", b"../data/f", Some(b"/work/data/f")),
            (b"/work/run", b"../.././data/f", Some(b"/data/f")),
            (b"/work", b"..", Some(b"/")),
            (b"/", b"work", Some(b"/work")),
            (b"/work", b"..x/f", Some(b"/work/..x/f")),
            (b"/work", b"../../../x", Some(b"/x")),
        ];
        for (here, path, wanted) in pairs {
            let mut whole = [0; 64];
            let found = absolute(here, path, &mut whole).map(|len| whole[..len].to_vec());
            assert_eq!(found.as_deref(), wanted);
        }
    }
}
