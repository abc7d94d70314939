/* A library of operators for ONNX Runtime with one: shoal.test's Double, Y = 2 X for FP32. Written against the part of
 * ONNX Runtime's C interface that never changes, by position, so that no header is needed. double.so is built by
 *
 *     cc -shared -fPIC -Os -s -nostdlib -Wl,-z,noseparate-code -Wl,--build-id=none -o double.so double.c
 */
#include <stddef.h>
#include <stdint.h>

typedef void *(*Function)();                       /* of OrtApi: all but the void ones return a status, NULL for success */
typedef const Function *Api;
typedef struct { Api (*get_api)(uint32_t version); } ApiBase;

enum { CREATE_DOMAIN = 26, DOMAIN_ADD, ADD_DOMAIN, MUTABLE_DATA = 51, DIMS_COUNT = 61, DIMS, ELEMENT_COUNT = 64,
       TYPE_AND_SHAPE, GET_INPUT = 90, GET_OUTPUT, RELEASE_SHAPE = 99 };
enum { FLOAT = 1, MAX_RANK = 16 };

static Api api;

static void *create(const void *op, const void *given, const void *info) { return (void *)op; }
static const char *name(const void *op) { return "Double"; }
static const char *provider(const void *op) { return NULL; }
static int element_type(const void *op, size_t index) { return FLOAT; }
static size_t one(const void *op) { return 1; }
static void destroy(void *kernel) {}
static int required(const void *op, size_t index) { return 0; }

static void compute(void *kernel, void *context) {
    void *input, *output, *shape;
    float *from, *to;
    int64_t dims[MAX_RANK];
    size_t rank, count;
    api[GET_INPUT](context, (size_t)0, &input);
    api[TYPE_AND_SHAPE](input, &shape);
    api[DIMS_COUNT](shape, &rank);
    if (rank > MAX_RANK) __builtin_trap();
    api[DIMS](shape, dims, rank);
    api[ELEMENT_COUNT](shape, &count);
    api[RELEASE_SHAPE](shape);
    api[GET_OUTPUT](context, (size_t)0, dims, rank, &output);
    api[MUTABLE_DATA](input, &from);
    api[MUTABLE_DATA](output, &to);
    for (size_t i = 0; i < count; i++) to[i] = 2 * from[i];
}

static const struct {
    uint32_t version;
    void *functions[11];
} DOUBLE = {8, {create, name, provider, element_type, one, element_type, one, compute, destroy, required, required}};

void *RegisterCustomOps(void *options, const ApiBase *base) {
    void *domain, *status;
    api = base->get_api(8);
    if ((status = api[CREATE_DOMAIN]("shoal.test", &domain))) return status;
    if ((status = api[DOMAIN_ADD](domain, &DOUBLE))) return status;
    return api[ADD_DOMAIN](options, domain);
}
