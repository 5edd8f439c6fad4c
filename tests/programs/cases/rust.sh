# A Rust program: built in place by rustc and run from there.
command -v rustc >/dev/null || { echo "rustc is not installed"; exit 77; }
cp "$SRC/prog.rs" . && rustc --edition 2021 -O -C codegen-units=2 prog.rs && ./prog data
rm prog
