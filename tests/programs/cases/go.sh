# A Go program, which makes its system calls itself: built in place and run from there.
command -v go >/dev/null || { echo "go is not installed"; exit 77; }
mkdir prog && cp "$SRC/prog.go" prog/main.go && cd prog
printf 'module prog\n\ngo 1.19\n' > go.mod
go build -trimpath -o prog . && ./prog data
rm prog
