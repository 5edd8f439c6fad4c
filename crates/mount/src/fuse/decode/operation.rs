//! Which operation a request asks for: one function a group, tried in turn.

use super::Malformed;
use super::fields::{Fields, set_attributes};
use crate::fuse::abi::{self, opcode};
use crate::fuse::request::{Ioctl, Operation};

type Decoded = Result<Option<Operation>, Malformed>;

/// The operation, or `None` if the opcode is not known or not wanted.
pub(super) fn operation(fields: &mut Fields<'_>) -> Decoded {
    for group in [
        on_data,
        on_nodes,
        on_directories,
        on_open_files,
        on_locks,
        on_xattrs,
        on_devices,
    ] {
        if let Some(operation) = group(fields)? {
            return Ok(Some(operation));
        }
    }
    Ok(None)
}

/// The most frequent ones. Writes are decoded apart, because of their payload.
fn on_data(fields: &mut Fields<'_>) -> Decoded {
    Ok(Some(match fields.opcode {
        opcode::READ => Operation::Read(fields.read()?),
        opcode::READDIR => Operation::Readdir(fields.read()?),
        opcode::READDIRPLUS => Operation::Readdirplus(fields.read()?),
        opcode::COPY_FILE_RANGE | opcode::COPY_FILE_RANGE_64 => {
            Operation::CopyFileRange(fields.copy()?)
        }
        _ => return Ok(None),
    }))
}

fn on_nodes(fields: &mut Fields<'_>) -> Decoded {
    Ok(Some(match fields.opcode {
        opcode::GETATTR => {
            let getattr: abi::GetattrIn = fields.record()?;
            let open = getattr.flags & abi::GETATTR_FH != 0;
            Operation::Getattr {
                handle: open.then_some(getattr.handle),
            }
        }
        opcode::SETATTR => Operation::Setattr(set_attributes(&fields.record()?)),
        opcode::READLINK => Operation::Readlink,
        opcode::STATFS => Operation::Statfs,
        opcode::ACCESS => Operation::Access {
            mask: fields.record::<abi::AccessIn>()?.mask,
        },
        opcode::OPEN => Operation::Open {
            flags: fields.record::<abi::OpenIn>()?.flags,
        },
        opcode::OPENDIR => Operation::Opendir {
            flags: fields.record::<abi::OpenIn>()?.flags,
        },
        _ => return Ok(None),
    }))
}

fn on_directories(fields: &mut Fields<'_>) -> Decoded {
    Ok(Some(match fields.opcode {
        opcode::LOOKUP => Operation::Lookup {
            name: fields.name()?,
        },
        opcode::UNLINK => Operation::Unlink {
            name: fields.name()?,
        },
        opcode::RMDIR => Operation::Rmdir {
            name: fields.name()?,
        },
        opcode::SYMLINK => Operation::Symlink {
            name: fields.name()?,
            target: fields.text()?,
        },
        opcode::MKNOD => {
            let abi::MknodIn { mode, rdev, .. } = fields.record()?;
            Operation::Mknod {
                name: fields.name()?,
                mode,
                rdev,
            }
        }
        opcode::MKDIR => {
            let mode = fields.record::<abi::MkdirIn>()?.mode;
            Operation::Mkdir {
                name: fields.name()?,
                mode,
            }
        }
        opcode::RENAME => {
            let new_parent = fields.record::<abi::RenameIn>()?.new_parent;
            fields.rename(new_parent, 0)?
        }
        opcode::RENAME2 => {
            let abi::Rename2In {
                new_parent, flags, ..
            } = fields.record()?;
            fields.rename(new_parent, flags)?
        }
        opcode::LINK => {
            let node = fields.record::<abi::LinkIn>()?.node;
            Operation::Link {
                node,
                name: fields.name()?,
            }
        }
        opcode::CREATE => {
            let abi::CreateIn { flags, mode, .. } = fields.record()?;
            Operation::Create {
                name: fields.name()?,
                mode,
                flags,
            }
        }
        _ => return Ok(None),
    }))
}

fn on_open_files(fields: &mut Fields<'_>) -> Decoded {
    Ok(Some(match fields.opcode {
        opcode::FLUSH => {
            let abi::FlushIn {
                handle, lock_owner, ..
            } = fields.record()?;
            Operation::Flush { handle, lock_owner }
        }
        opcode::RELEASE => {
            let abi::ReleaseIn {
                handle,
                flags,
                release_flags,
                lock_owner,
            } = fields.record()?;
            let flush = release_flags & abi::RELEASE_FLUSH != 0;
            let unlock = release_flags & abi::RELEASE_FLOCK_UNLOCK != 0;
            Operation::Release {
                handle,
                flags,
                lock_owner,
                flush,
                unlock,
            }
        }
        opcode::RELEASEDIR => Operation::Releasedir {
            handle: fields.record::<abi::ReleaseIn>()?.handle,
        },
        opcode::FSYNC | opcode::FSYNCDIR => {
            let abi::FsyncIn { handle, flags, .. } = fields.record()?;
            let data_only = flags & abi::FSYNC_FDATASYNC != 0;
            if fields.opcode == opcode::FSYNC {
                Operation::Fsync { handle, data_only }
            } else {
                Operation::Fsyncdir { handle, data_only }
            }
        }
        opcode::FALLOCATE => {
            let abi::FallocateIn {
                handle,
                offset,
                len,
                mode,
                ..
            } = fields.record()?;
            Operation::Fallocate {
                handle,
                offset,
                len,
                mode,
            }
        }
        opcode::LSEEK => {
            let abi::LseekIn {
                handle,
                offset,
                whence,
                ..
            } = fields.record()?;
            Operation::Lseek {
                handle,
                offset,
                whence,
            }
        }
        _ => return Ok(None),
    }))
}

fn on_locks(fields: &mut Fields<'_>) -> Decoded {
    Ok(Some(match fields.opcode {
        opcode::GETLK => Operation::Getlk(fields.lock()?),
        opcode::SETLK => Operation::Setlk(fields.lock()?),
        opcode::SETLKW => Operation::Setlkw(fields.lock()?),
        _ => return Ok(None),
    }))
}

fn on_xattrs(fields: &mut Fields<'_>) -> Decoded {
    Ok(Some(match fields.opcode {
        opcode::SETXATTR => {
            let abi::SetxattrIn { len, flags } = fields.record()?;
            let name = fields.text()?;
            let value = fields.bytes(len)?.to_vec();
            Operation::Setxattr { name, value, flags }
        }
        opcode::GETXATTR => {
            let len = fields.record::<abi::GetxattrIn>()?.len;
            Operation::Getxattr {
                name: fields.text()?,
                len,
            }
        }
        opcode::LISTXATTR => Operation::Listxattr {
            len: fields.record::<abi::GetxattrIn>()?.len,
        },
        opcode::REMOVEXATTR => Operation::Removexattr {
            name: fields.text()?,
        },
        _ => return Ok(None),
    }))
}

fn on_devices(fields: &mut Fields<'_>) -> Decoded {
    Ok(Some(match fields.opcode {
        opcode::IOCTL => {
            let ioctl: abi::IoctlIn = fields.record()?;
            let input = fields.bytes(ioctl.in_len)?.to_vec();
            let (handle, command, output_max) = (ioctl.handle, ioctl.command, ioctl.out_len);
            Operation::Ioctl(Ioctl {
                handle,
                command,
                input,
                output_max,
            })
        }
        _ => return Ok(None),
    }))
}
