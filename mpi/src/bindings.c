// Reads the relocations of every loaded object, as GOTCHA and other tools do. The dynamic linker has
// bound them by then, so a slot that holds another address than it would have written is not its
// any more, and stays.
#include "bindings.h"

#include <link.h>
#include <stdint.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#if defined(__x86_64__)
enum { SLOT = R_X86_64_JUMP_SLOT, ADDRESS = R_X86_64_GLOB_DAT, WORD = R_X86_64_64 };
#elif defined(__aarch64__)
enum { SLOT = R_AARCH64_JUMP_SLOT, ADDRESS = R_AARCH64_GLOB_DAT, WORD = R_AARCH64_ABS64 };
#elif defined(__powerpc64__)
enum { SLOT = R_PPC64_JMP_SLOT, ADDRESS = R_PPC64_GLOB_DAT, WORD = R_PPC64_ADDR64 };
#else
#error "which relocations of this machine hold the address of a function?"
#endif

struct object {
    uintptr_t base;
    uintptr_t sealed, sealed_end; // pages that are read-only once everything is bound
    const ElfW(Sym) *symbols;
    const char *strings;
    const ElfW(Rela) *relocations[2];
    size_t counts[2];
    ElfW(Half) *versions;
    const ElfW(Word) *hash;
};

struct wanted {
    const struct named *names;
    int count, at_start;
};

static uintptr_t page_of(uintptr_t at) {
    return at & ~((uintptr_t)sysconf(_SC_PAGESIZE) - 1);
}

// glibc adds the object's base to these addresses in memory, other linkers and the kernel's object
// do not.
static void *address(const struct object *object, uintptr_t value) {
    return (void *)(value < object->base ? object->base + value : value);
}

static int read_object(const struct dl_phdr_info *info, struct object *object) {
    const ElfW(Dyn) *dynamic = NULL;
    memset(object, 0, sizeof *object);
    object->base = info->dlpi_addr;
    for (int i = 0; i < info->dlpi_phnum; i++) {
        uintptr_t at = info->dlpi_addr + info->dlpi_phdr[i].p_vaddr;
        if (info->dlpi_phdr[i].p_type == PT_DYNAMIC) dynamic = (const ElfW(Dyn) *)at;
        if (info->dlpi_phdr[i].p_type != PT_GNU_RELRO) continue;
        object->sealed = page_of(at);
        object->sealed_end = page_of(at + info->dlpi_phdr[i].p_memsz);
    }
    int is_other_form = 0;
    for (; dynamic != NULL && dynamic->d_tag != DT_NULL; dynamic++) {
        uintptr_t value = dynamic->d_un.d_val;
        switch (dynamic->d_tag) {
        case DT_SYMTAB: object->symbols = address(object, value); break;
        case DT_STRTAB: object->strings = address(object, value); break;
        case DT_JMPREL: object->relocations[0] = address(object, value); break;
        case DT_PLTRELSZ: object->counts[0] = value / sizeof(ElfW(Rela)); break;
        case DT_RELA: object->relocations[1] = address(object, value); break;
        case DT_RELASZ: object->counts[1] = value / sizeof(ElfW(Rela)); break;
        case DT_VERSYM: object->versions = address(object, value); break;
        case DT_HASH: object->hash = address(object, value); break;
        case DT_PLTREL: is_other_form = value != DT_RELA; break;
        }
    }
    return object->symbols != NULL && object->strings != NULL && !is_other_form ? 0 : -1;
}

static const struct named *find(const struct wanted *wanted, const char *name) {
    if (strncmp(name, "MPI_", 4) != 0 && strncmp(name, "PMPI_", 5) != 0) return NULL;
    for (int i = 0; i < wanted->count; i++) {
        if (strcmp(wanted->names[i].name, name) == 0) return &wanted->names[i];
    }
    return NULL;
}

// Pages of an object that is being loaded by another thread must not be sealed: those that were not
// changed at the start stay open.
static void store(const struct object *object, void **slot, void *value, int at_start) {
    uintptr_t page = page_of((uintptr_t)slot);
    size_t len = (size_t)sysconf(_SC_PAGESIZE);
    int is_sealed = page >= object->sealed && page < object->sealed_end;
    if (is_sealed && mprotect((void *)page, len, PROT_READ | PROT_WRITE) != 0) return;
    __atomic_store_n(slot, value, __ATOMIC_RELEASE);
    if (is_sealed && at_start) mprotect((void *)page, len, PROT_READ);
}

static void mend(const struct object *object, const ElfW(Rela) *it, const struct wanted *wanted) {
    unsigned type = ELF64_R_TYPE(it->r_info);
    size_t index = ELF64_R_SYM(it->r_info);
    if (index == 0 || (type != SLOT && type != ADDRESS && type != WORD)) return;
    const ElfW(Sym) *symbol = &object->symbols[index];
    const struct named *named = find(wanted, object->strings + symbol->st_name);
    if (named == NULL || symbol->st_shndx != SHN_UNDEF) return;
    void **slot = (void **)(object->base + it->r_offset);
    void *now = __atomic_load_n(slot, __ATOMIC_ACQUIRE);
    if (named->found == NULL) {
        int is_weak = ELF64_ST_BIND(symbol->st_info) == STB_WEAK;
        if (is_weak && now == named->entry) store(object, slot, NULL, wanted->at_start);
    } else if (named->is_later && now == named->found) {
        store(object, slot, named->entry, wanted->at_start);
    }
}

// Makes hidden names of this library such as have no version. Slots that were not bound yet, as
// those of a procedure linkage table before their first call, find them too.
static void show(const struct object *object, const struct wanted *wanted) {
    if (object->versions == NULL || object->hash == NULL) return;
    size_t count = object->hash[1]; // chains, which are as many as symbols
    uintptr_t first = page_of((uintptr_t)object->versions);
    size_t len = (uintptr_t)(object->versions + count) - first;
    int is_open = 0;
    for (size_t i = 1; i < count; i++) {
        const struct named *named = find(wanted, object->strings + object->symbols[i].st_name);
        if (named == NULL || !named->is_later || named->found == NULL) continue;
        if (!is_open && mprotect((void *)first, len, PROT_READ | PROT_WRITE) != 0) return;
        is_open = 1;
        __atomic_store_n(&object->versions[i], VER_NDX_GLOBAL, __ATOMIC_RELEASE);
    }
    if (is_open) mprotect((void *)first, len, PROT_READ);
}

static int each(struct dl_phdr_info *info, size_t size, void *to) {
    const struct wanted *wanted = to;
    struct object object;
    (void)size;
    if (read_object(info, &object) != 0) return 0;
    // Ours is the one whose dynamic section is.
    for (int i = 0; i < info->dlpi_phnum; i++) {
        uintptr_t at = info->dlpi_addr + info->dlpi_phdr[i].p_vaddr;
        if (info->dlpi_phdr[i].p_type != PT_DYNAMIC || at != (uintptr_t)_DYNAMIC) continue;
        show(&object, wanted);
        return 0;
    }
    for (int kind = 0; kind < 2; kind++) {
        for (size_t i = 0; i < object.counts[kind] && object.relocations[kind] != NULL; i++) {
            mend(&object, &object.relocations[kind][i], wanted);
        }
    }
    return 0;
}

void bindings_mend(const struct named *names, int count, int at_start) {
    struct wanted wanted = {names, count, at_start};
    dl_iterate_phdr(each, &wanted);
}
