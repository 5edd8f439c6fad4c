//! Keeps the names of the client's C interface out of the short-cut: it must not stand before the
//! library that a program itself was linked with.

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    // The hooks are in no archive.
    println!("cargo::rustc-link-arg-cdylib=-Wl,--exclude-libs,ALL");
}
