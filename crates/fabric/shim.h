// The calls between the Rust side and shim.c; src/ffi.rs declares the same. Codes are 0 or a negative
// number of libfabric's (errno's where it is one).

#ifndef TIDEGATE_SHIM_H
#define TIDEGATE_SHIM_H

#include <stddef.h>
#include <stdint.h>

struct tgf_domain;
struct tgf_ep;
struct tgf_mr;

// What the chosen provider is and can. The texts live as long as the domain.
struct tgf_facts {
  const char *provider;
  const char *name;
  uint64_t message_max;
  // Local buffers are to be registered.
  int local;
  // Memory is registered with one endpoint, not with the domain.
  int bound;
};

// One operation that is over: the number it was begun with, and 0 or an error (positive).
struct tgf_done {
  uint64_t number;
  uint64_t len;
  int error;
};

// Where in registered memory peers find its first byte, and the key that they need.
struct tgf_place {
  uint64_t address;
  uint64_t key;
};

// Loads libfabric, once. NULL, or why there is none.
const char *tgf_load(void);
uint32_t tgf_version(void);
const char *tgf_text(int code);

// A domain of the first fabric of this provider; `node` is a local address, or NULL for any.
int tgf_open(const char *provider, const char *node, struct tgf_domain **out);
void tgf_close(struct tgf_domain *domain);
void tgf_facts(const struct tgf_domain *domain, struct tgf_facts *facts);

// An endpoint for one peer, with a completion queue of so many entries, that takes messages from now
// on. `name` is its address where the provider leaves that to us, or NULL.
int tgf_ep_open(struct tgf_domain *domain, const char *name, size_t entries, struct tgf_ep **out);
void tgf_ep_close(struct tgf_ep *ep);
// Readable when there are completions; -1 where the provider has no such thing.
int tgf_ep_fd(const struct tgf_ep *ep);
int tgf_ep_name(struct tgf_ep *ep, void *name, size_t *len);
int tgf_ep_peer(struct tgf_ep *ep, const void *name);

int tgf_send(struct tgf_ep *ep, const void *bytes, size_t len, struct tgf_mr *mr, uint64_t number);
int tgf_receive(struct tgf_ep *ep, void *bytes, size_t len, struct tgf_mr *mr, uint64_t number);
// Moves bytes to (put) or from the peer's registered memory.
int tgf_move(struct tgf_ep *ep, int put, void *bytes, size_t len, struct tgf_mr *mr, uint64_t address,
             uint64_t key, uint64_t number);
// Takes one completion: 1, or 0 if there is none.
int tgf_poll(struct tgf_ep *ep, struct tgf_done *done);
// Whether a wait for the descriptor ends with the next completion; else there is one to be taken.
int tgf_may_wait(struct tgf_ep *ep);

// `remote`: the peer may read and write it. `wanted` is the key where the provider leaves that to us.
int tgf_register(struct tgf_domain *domain, struct tgf_ep *ep, void *bytes, size_t len, int remote,
                 uint64_t wanted, struct tgf_mr **out, struct tgf_place *place);
void tgf_unregister(struct tgf_mr *mr);

#endif
