// The few calls of libfabric that the Rust side needs, as plain functions: libfabric's own are mostly
// inline functions of its headers. The library itself is loaded when the first fabric is opened, so
// that a program built with this runs where there is none, and one that uses none pays nothing.

#include "shim.h"

#include <dlfcn.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <rdma/fabric.h>
#include <rdma/fi_cm.h>
#include <rdma/fi_domain.h>
#include <rdma/fi_endpoint.h>
#include <rdma/fi_eq.h>
#include <rdma/fi_errno.h>
#include <rdma/fi_rma.h>

#define API FI_VERSION(1, 17)

static struct {
  __typeof__(&fi_getinfo) getinfo;
  __typeof__(&fi_freeinfo) freeinfo;
  __typeof__(&fi_dupinfo) dupinfo;
  __typeof__(&fi_fabric) fabric;
  __typeof__(&fi_strerror) strerror;
  __typeof__(&fi_version) version;
  char trouble[256];
} lib;

struct tgf_domain {
  struct fi_info *info;
  struct fid_fabric *fabric;
  struct fid_domain *domain;
};

struct tgf_ep {
  struct tgf_domain *domain;
  struct fid_av *av;
  struct fid_cq *cq;
  struct fid_ep *ep;
  fi_addr_t peer;
  int fd;
};

// Initialises all providers, which takes tenths of a second.
static void begin(void) {
  struct fi_info *found = NULL;
  if (!lib.getinfo(API, NULL, NULL, 0, NULL, &found)) lib.freeinfo(found);
}

static void load(void) {
  void *so = dlopen("libfabric.so.1", RTLD_NOW | RTLD_LOCAL);
  if (!so) {
    const char *why = dlerror();
    snprintf(lib.trouble, sizeof lib.trouble, "%s", why ? why : "it cannot be loaded");
    return;
  }
  lib.freeinfo = (__typeof__(&fi_freeinfo))dlsym(so, "fi_freeinfo");
  lib.dupinfo = (__typeof__(&fi_dupinfo))dlsym(so, "fi_dupinfo");
  lib.fabric = (__typeof__(&fi_fabric))dlsym(so, "fi_fabric");
  lib.strerror = (__typeof__(&fi_strerror))dlsym(so, "fi_strerror");
  lib.version = (__typeof__(&fi_version))dlsym(so, "fi_version");
  lib.getinfo = (__typeof__(&fi_getinfo))dlsym(so, "fi_getinfo");
  if (!lib.freeinfo || !lib.dupinfo || !lib.fabric || !lib.strerror || !lib.version || !lib.getinfo) {
    snprintf(lib.trouble, sizeof lib.trouble, "libfabric.so.1 lacks a function");
    lib.getinfo = NULL;
  }
}

// Some providers take over signals when they are loaded, or begin. They are the program's.
static void load_once(void) {
  struct sigaction before[32];
  for (int i = 1; i < 32; i++) sigaction(i, NULL, &before[i]);
  load();
  if (lib.getinfo) begin();
  for (int i = 1; i < 32; i++)
    if (i != SIGKILL && i != SIGSTOP) sigaction(i, &before[i], NULL);
}

const char *tgf_load(void) {
  static pthread_once_t once = PTHREAD_ONCE_INIT;
  pthread_once(&once, load_once);
  return lib.getinfo ? NULL : lib.trouble;
}

uint32_t tgf_version(void) { return lib.version(); }

const char *tgf_text(int code) { return lib.strerror(code < 0 ? -code : code); }

static int find(const char *provider, const char *node, int order, struct fi_info **found) {
  struct fi_info *hints = lib.dupinfo(NULL);
  if (!hints) return -FI_ENOMEM;
  hints->caps = FI_MSG | FI_RMA;
  hints->ep_attr->type = FI_EP_RDM;
  hints->domain_attr->threading = FI_THREAD_SAFE;
  hints->domain_attr->resource_mgmt = FI_RM_ENABLED;
  hints->domain_attr->mr_mode =
      FI_MR_LOCAL | FI_MR_VIRT_ADDR | FI_MR_ALLOCATED | FI_MR_PROV_KEY | FI_MR_ENDPOINT;
  // Messages arrive in order, and behind the writes before them.
  hints->tx_attr->msg_order = hints->rx_attr->msg_order = order;
  hints->fabric_attr->prov_name = strdup(provider);
  int code = lib.getinfo(API, node, NULL, node ? FI_SOURCE : 0, hints, found);
  lib.freeinfo(hints);
  return code;
}

int tgf_open(const char *provider, const char *node, struct tgf_domain **out) {
  struct tgf_domain *domain = calloc(1, sizeof *domain);
  if (!domain) return -FI_ENOMEM;
  int code = find(provider, node, FI_ORDER_SAS | FI_ORDER_SAW, &domain->info);
  if (!code) code = lib.fabric(domain->info->fabric_attr, &domain->fabric, NULL);
  if (!code) code = fi_domain(domain->fabric, domain->info, &domain->domain, NULL);
  if (code) {
    tgf_close(domain);
    return code;
  }
  *out = domain;
  return 0;
}

void tgf_close(struct tgf_domain *domain) {
  if (domain->domain) fi_close(&domain->domain->fid);
  if (domain->fabric) fi_close(&domain->fabric->fid);
  if (domain->info) lib.freeinfo(domain->info);
  free(domain);
}

void tgf_facts(const struct tgf_domain *domain, struct tgf_facts *facts) {
  const struct fi_info *info = domain->info;
  facts->provider = info->fabric_attr->prov_name;
  facts->name = info->domain_attr->name;
  facts->message_max = info->ep_attr->max_msg_size;
  facts->local = !!(info->domain_attr->mr_mode & FI_MR_LOCAL);
  facts->bound = !!(info->domain_attr->mr_mode & FI_MR_ENDPOINT);
}

int tgf_ep_open(struct tgf_domain *domain, const char *name, size_t entries, struct tgf_ep **out) {
  struct tgf_ep *ep = calloc(1, sizeof *ep);
  if (!ep) return -FI_ENOMEM;
  ep->domain = domain;
  ep->peer = FI_ADDR_UNSPEC;
  ep->fd = -1;
  struct fi_av_attr av = {.type = FI_AV_TABLE, .count = 1};
  struct fi_cq_attr cq = {.size = entries, .format = FI_CQ_FORMAT_MSG, .wait_obj = FI_WAIT_FD};
  struct fi_info *info = lib.dupinfo(domain->info);
  int code = info ? 0 : -FI_ENOMEM;
  if (!code && name) {
    free(info->src_addr);
    info->src_addr = strdup(name);
    info->src_addrlen = strlen(name) + 1;
  }
  if (!code) {
    // As large as they are used: some providers take memory for each place.
    if (info->tx_attr->size > entries) info->tx_attr->size = entries;
    if (info->rx_attr->size > entries) info->rx_attr->size = entries;
    code = fi_endpoint(domain->domain, info, &ep->ep, NULL);
  }
  if (!code) code = fi_av_open(domain->domain, &av, &ep->av, NULL);
  if (!code) {
    code = fi_cq_open(domain->domain, &cq, &ep->cq, NULL);
    if (!code) {
      code = fi_control(&ep->cq->fid, FI_GETWAIT, &ep->fd);
    } else {
      cq.wait_obj = FI_WAIT_NONE;
      code = fi_cq_open(domain->domain, &cq, &ep->cq, NULL);
    }
  }
  if (!code) code = fi_ep_bind(ep->ep, &ep->av->fid, 0);
  if (!code) code = fi_ep_bind(ep->ep, &ep->cq->fid, FI_TRANSMIT | FI_RECV);
  if (!code) code = fi_enable(ep->ep);
  if (info) lib.freeinfo(info);
  if (code) {
    tgf_ep_close(ep);
    return code;
  }
  *out = ep;
  return 0;
}

void tgf_ep_close(struct tgf_ep *ep) {
  if (ep->ep) fi_close(&ep->ep->fid);
  if (ep->cq) fi_close(&ep->cq->fid);
  if (ep->av) fi_close(&ep->av->fid);
  free(ep);
}

int tgf_ep_fd(const struct tgf_ep *ep) { return ep->fd; }

int tgf_ep_name(struct tgf_ep *ep, void *name, size_t *len) {
  return fi_getname(&ep->ep->fid, name, len);
}

int tgf_ep_peer(struct tgf_ep *ep, const void *name) {
  int inserted = fi_av_insert(ep->av, name, 1, &ep->peer, 0, NULL);
  if (inserted < 0) return inserted;
  return inserted == 1 && ep->peer != FI_ADDR_NOTAVAIL ? 0 : -FI_EINVAL;
}

static void *desc(const struct tgf_mr *mr) { return mr ? fi_mr_desc((struct fid_mr *)mr) : NULL; }

static void *context(uint64_t number) { return (void *)(uintptr_t)number; }

int tgf_send(struct tgf_ep *ep, const void *bytes, size_t len, struct tgf_mr *mr, uint64_t number) {
  return (int)fi_send(ep->ep, bytes, len, desc(mr), ep->peer, context(number));
}

int tgf_receive(struct tgf_ep *ep, void *bytes, size_t len, struct tgf_mr *mr, uint64_t number) {
  return (int)fi_recv(ep->ep, bytes, len, desc(mr), FI_ADDR_UNSPEC, context(number));
}

int tgf_move(struct tgf_ep *ep, int put, void *bytes, size_t len, struct tgf_mr *mr, uint64_t address,
             uint64_t key, uint64_t number) {
  if (put)
    return (int)fi_write(ep->ep, bytes, len, desc(mr), ep->peer, address, key, context(number));
  return (int)fi_read(ep->ep, bytes, len, desc(mr), ep->peer, address, key, context(number));
}

int tgf_poll(struct tgf_ep *ep, struct tgf_done *done) {
  struct fi_cq_msg_entry entry = {0};
  ssize_t count = fi_cq_read(ep->cq, &entry, 1);
  if (count == 1) {
    done->number = (uintptr_t)entry.op_context;
    done->len = entry.len;
    done->error = 0;
    return 1;
  }
  if (count == -FI_EAGAIN || count == 0) return 0;
  if (count != -FI_EAVAIL) return (int)count;
  struct fi_cq_err_entry error = {0};
  count = fi_cq_readerr(ep->cq, &error, 0);
  if (count == -FI_EAGAIN || count == 0) return 0;
  if (count < 0) return (int)count;
  done->number = (uintptr_t)error.op_context;
  done->len = 0;
  done->error = error.err ? error.err : FI_EIO;
  return 1;
}

int tgf_may_wait(struct tgf_ep *ep) {
  struct fid *fids[] = {&ep->cq->fid};
  return fi_trywait(ep->domain->fabric, fids, 1) == FI_SUCCESS;
}

int tgf_register(struct tgf_domain *domain, struct tgf_ep *ep, void *bytes, size_t len, int remote,
                 uint64_t wanted, struct tgf_mr **out, struct tgf_place *place) {
  uint64_t access = remote ? FI_REMOTE_READ | FI_REMOTE_WRITE : 0;
  access |= FI_SEND | FI_RECV | FI_READ | FI_WRITE;
  struct fid_mr *mr = NULL;
  int code = fi_mr_reg(domain->domain, bytes, len, access, 0, wanted, 0, &mr, NULL);
  if (code) return code;
  int mode = domain->info->domain_attr->mr_mode;
  if (mode & FI_MR_ENDPOINT) {
    code = ep ? fi_mr_bind(mr, &ep->ep->fid, 0) : -FI_EINVAL;
    if (!code) code = fi_mr_enable(mr);
  }
  if (code) {
    fi_close(&mr->fid);
    return code;
  }
  place->key = fi_mr_key(mr);
  place->address = mode & FI_MR_VIRT_ADDR ? (uintptr_t)bytes : 0;
  if (remote && place->key == FI_KEY_NOTAVAIL) {
    fi_close(&mr->fid);
    return -FI_EKEYREJECTED;
  }
  *out = (struct tgf_mr *)mr;
  return 0;
}

void tgf_unregister(struct tgf_mr *mr) { fi_close(&((struct fid_mr *)mr)->fid); }
