//! Gives the shared library its name at run time; it changes when the C ABI breaks.

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    println!("cargo:rustc-cdylib-link-arg=-Wl,-soname,libtidegate_sched.so.0");
}
