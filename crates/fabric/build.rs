//! Compiles the shim around libfabric, if the feature asks for it.

fn main() {
    println!("cargo::rerun-if-changed=shim.c");
    println!("cargo::rerun-if-changed=shim.h");
    #[cfg(feature = "libfabric")]
    shim();
}

#[cfg(feature = "libfabric")]
fn shim() {
    // Only its headers are used here: the library is loaded when it is needed.
    let found = pkg_config::Config::new()
        .atleast_version("1.17")
        .cargo_metadata(false)
        .probe("libfabric");
    let found = match found {
        Ok(found) => found,
        Err(error) => {
            eprintln!("{error}\nthe feature fabric needs libfabric 1.17 (Debian: libfabric-dev)");
            std::process::exit(1);
        }
    };
    cc::Build::new()
        .file("shim.c")
        .includes(found.include_paths)
        .std("gnu11")
        .warnings(true)
        .compile("tidegate_shim");
}
