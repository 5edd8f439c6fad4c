//! What a mount tells a program about one of its files, so that it can go straight to the
//! forwarders: the answer to a device control call on an open file.
//!
//! The call goes through the kernel to whoever serves the mount; other file systems say ENOTTY.

use crate::wire::Handle;

/// Bytes of the answer.
pub const ANSWER_LEN: usize = 4096;

/// Number of the call: it passes `ANSWER_LEN` bytes out (`_IOR(0xf7, 1, ...)`).
pub const COMMAND: u32 = 2 << 30 | (ANSWER_LEN as u32) << 16 | 0xf7 << 8 | 1;

/// First bytes of an answer, which also say how the others are to be read.
const MAGIC: [u8; 8] = *b"tidegat1";
/// Bytes before the text.
const HEAD: usize = 8 + 8 + 8 + 8 + 8;

/// Which file it is, and how its forwarders are reached.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Answer {
    /// The file.
    pub handle: Handle,
    /// The application that what is done through this open counts for.
    pub app: u64,
    /// A line for [`Options::from_text`](crate::Options::from_text).
    pub forwarders: String,
}

impl Answer {
    /// The bytes; None if they would be too many.
    pub fn encode(&self) -> Option<Vec<u8>> {
        let text = self.forwarders.as_bytes();
        let numbers = [
            self.handle.inode,
            self.handle.birth,
            self.app,
            text.len() as u64,
        ];
        let mut bytes = MAGIC.to_vec();
        for number in numbers {
            bytes.extend(number.to_le_bytes());
        }
        bytes.extend(text);
        (bytes.len() <= ANSWER_LEN).then_some(bytes)
    }

    /// Reads what [`encode`](Answer::encode) wrote; bytes behind it do not matter.
    pub fn decode(bytes: &[u8]) -> Option<Answer> {
        let (head, text) = bytes.split_at_checked(HEAD)?;
        let (magic, numbers) = head.split_at(MAGIC.len());
        if magic != MAGIC {
            return None;
        }
        let number = |i: usize| -> Option<u64> {
            let bytes = numbers.get(8 * i..8 * i + 8)?;
            Some(u64::from_le_bytes(bytes.try_into().ok()?))
        };
        let text = text.get(..usize::try_from(number(3)?).ok()?)?;
        Some(Answer {
            handle: Handle {
                inode: number(0)?,
                birth: number(1)?,
            },
            app: number(2)?,
            forwarders: String::from_utf8(text.to_vec()).ok()?,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_is_read_as_it_was_written_and_nothing_else_is() {
        let answer = Answer {
            handle: Handle { inode: 7, birth: 9 },
            app: u64::MAX,
            forwarders: "unix:/run/a.sock".to_string(),
        };
        let mut bytes = answer.encode().expect("it is short");
        let len = bytes.len();
        bytes.resize(ANSWER_LEN, 0);
        assert_eq!(Answer::decode(&bytes), Some(answer.clone()));
        assert_eq!(Answer::decode(&bytes[..len - 1]), None);
        assert_eq!(Answer::decode(&[0; ANSWER_LEN]), None);
        bytes[32..40].copy_from_slice(&u64::MAX.to_le_bytes());
        assert_eq!(Answer::decode(&bytes), None);
        let forwarders = "x".repeat(ANSWER_LEN);
        assert_eq!(
            Answer {
                forwarders,
                ..answer
            }
            .encode(),
            None
        );
    }
}
