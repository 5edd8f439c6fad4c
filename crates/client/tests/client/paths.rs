//! Files by path.

use crate::fake::{Fake, plain};
use tidegate_client::fs::OpenHow;
use tidegate_client::wire::Extent;
use tidegate_client::{Bytes, Context, Errno};

#[test]
fn paths_lead_through_links_to_files() {
    let fake = Fake::start("paths");
    let client = fake.client();
    let (ctx, root) = (plain(), client.root().handle);
    let file = client
        .open_path(&ctx, b"/./data", &OpenHow::create())
        .expect("created");
    assert_eq!(file.pwrite(&ctx, 0, Bytes::from_static(b"hello")), Ok(5));
    client
        .symlink(&ctx, root, b"link", b"/data")
        .expect("linked");
    client
        .symlink(&ctx, root, b"loop", b"loop")
        .expect("linked");
    client
        .symlink(&ctx, root, b"dangling", b"later")
        .expect("linked");

    let found = client.resolve(&ctx, b"link").expect("followed");
    assert_eq!(found.handle, file.handle());
    assert_ne!(
        client.resolve_link(&ctx, b"link").expect("there").handle,
        file.handle()
    );
    assert_eq!(
        client
            .resolve(&ctx, b"../../data")
            .expect("the root's parent is itself"),
        found
    );
    assert_eq!(client.resolve(&ctx, b"loop"), Err(Errno::LOOP));
    assert_eq!(client.resolve(&ctx, b"data/x"), Err(Errno::NOTDIR));
    assert_eq!(client.resolve(&ctx, b"data/"), Err(Errno::NOTDIR));
    assert_eq!(client.resolve(&ctx, b""), Err(Errno::NOENT));
    assert_eq!(client.resolve(&ctx, b"/").expect("the root").handle, root);

    let through = client
        .open_path(&ctx, b"dangling", &OpenHow::create())
        .expect("created");
    let later = client
        .resolve(&ctx, b"later")
        .expect("created through the link");
    assert_eq!(through.handle(), later.handle);
}

#[test]
fn opening_follows_open_2() {
    let fake = Fake::start("open-path");
    let client = fake.client();
    let ctx = plain();
    let open = |path: &[u8], how: &OpenHow| client.open_path(&ctx, path, how).map(|f| f.handle());
    let exclusive = OpenHow {
        exclusive: true,
        ..OpenHow::create()
    };
    assert_eq!(open(b"new", &OpenHow::read()), Err(Errno::NOENT));
    let new = open(b"new", &exclusive).expect("created");
    assert_eq!(open(b"new", &exclusive), Err(Errno::EXIST));
    assert_eq!(open(b"new", &OpenHow::read()), Ok(new));
    assert_eq!(open(b"/", &OpenHow::read()), Err(Errno::ISDIR));
    assert_eq!(open(b"other/", &OpenHow::create()), Err(Errno::ISDIR));
    client
        .symlink(&ctx, client.root().handle, b"link", b"new")
        .expect("linked");
    let no_follow = OpenHow {
        no_follow: true,
        ..OpenHow::read()
    };
    assert_eq!(open(b"link", &no_follow), Err(Errno::LOOP));

    let file = client
        .open_path(&ctx, b"new", &OpenHow::create())
        .expect("there");
    let append = |bytes| file.append(&ctx, Bytes::from_static(bytes));
    assert_eq!(append(b"abc"), Ok(Extent { offset: 0, len: 3 }));
    fake.set_room(2);
    assert_eq!(append(b"def"), Ok(Extent { offset: 3, len: 2 }));
    assert_eq!(append(b"def"), Err(Errno(libc::ENOSPC)));
    fake.set_room(usize::MAX);
    assert_eq!(append(b"f"), Ok(Extent { offset: 5, len: 1 }));
    let data = file.pread(&ctx, 2, 100).expect("readable");
    assert_eq!(data.into_bytes(), &b"cdef"[..]);
    let truncate = OpenHow {
        truncate: true,
        ..OpenHow::create()
    };
    let file = client.open_path(&ctx, b"new", &truncate).expect("there");
    assert_eq!(file.attr(&ctx).expect("attributes").size, 0);
    assert_eq!(file.fsync(&ctx, true), Ok(()));
}

#[test]
fn small_writes_are_sent_together_before_anything_else_is_done() {
    let fake = Fake::start("coalesce");
    let client = fake.client_with(|options| options.coalesce_bytes = 1000);
    let other = fake.client();
    let ctx = plain();
    let open = || client.open_path(&ctx, b"log", &OpenHow::create());
    let file = open().expect("created");
    let seen = || {
        let file = other.open_path(&ctx, b"log", &OpenHow::read());
        let data = file.and_then(|file| file.pread(&ctx, 0, 10_000));
        data.expect("it is there").into_bytes()
    };
    let line = |n: usize| Bytes::from(format!("line {n:04}\n"));
    for n in 0..50 {
        assert_eq!(file.pwrite(&ctx, 10 * n as u64, line(n)), Ok(10));
    }
    assert_eq!(seen().len(), 0, "nothing was sent");
    assert_eq!(file.attr(&ctx).map(|attr| attr.size), Ok(500));
    assert_eq!(seen().len(), 500);
    for n in 50..160 {
        assert_eq!(file.pwrite(&ctx, 10 * n as u64, line(n)), Ok(10));
    }
    assert_eq!(
        seen().len(),
        1500,
        "what does not fit sends what was before"
    );
    assert_eq!(file.pwrite(&ctx, 9990, line(999)), Ok(10));
    assert_eq!(seen().len(), 1600, "and what is elsewhere");
    file.fsync(&ctx, false).expect("it is stable");
    assert_eq!(seen().len(), 10_000);
    assert_eq!(
        file.pwrite(&ctx, 0, Bytes::from(vec![b'x'; 2000])),
        Ok(2000)
    );
    assert!(
        seen().starts_with(&[b'x'; 2000]),
        "a large one is sent at once"
    );
    assert_eq!(file.pwrite(&ctx, 3, Bytes::from_static(b"ab")), Ok(2));
    let data = file.pread(&ctx, 0, 6).expect("read").into_bytes();
    assert_eq!(&data[..], b"xxxabx", "it sees its own");
    assert_eq!(file.pwrite(&ctx, 0, Bytes::from_static(b"0")), Ok(1));
    drop(file);
    assert_eq!(seen()[0], b'0');
    let file = open().expect("it is there");
    assert_eq!(file.pwrite(&ctx, 0, Bytes::from_static(b"1")), Ok(1));
    fake.with(|state| state.silent = true);
    let soon = Context {
        timeout: Some(std::time::Duration::from_millis(50)),
        ..plain()
    };
    assert_eq!(
        file.close(&soon),
        Err(Errno::TIMEDOUT),
        "and is told of what is lost"
    );
}
