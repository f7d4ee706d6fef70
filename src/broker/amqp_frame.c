/* SPDX-License-Identifier: MIT
 *
 * amqp_frame.c: from frames to a message: the delivery, its header, and as many pieces of its body as it takes.
 *
 * librabbitmq's own way to do this waits for the next piece for ever. This one takes what has come and can be left in
 * the middle of a message.
 *
 * Invariants: what is kept of a frame is copied, so that librabbitmq can have its memory back after each. The server
 * may lie about everything: a piece that does not belong here, or is too long, ends the connection.
 */
#include "broker/amqp_private.h"

#define ARENA_MAX ((size_t)8 << 20) /* a header is one frame, and a frame has a bound; texts may be longer */
#define KEEP_BODY ((size_t)1 << 20) /* a larger buffer is not kept for the next message */
#define KEEP_ARENA ((size_t)64 << 10)

void semel__amqp_build_init(struct amqp_build *build)
{
    *build = (struct amqp_build){0};
    semel__arena_init(&build->arena, ARENA_MAX);
}

void semel__amqp_build_drop(struct amqp_build *build)
{
    build->stage = AMQP_STAGE_NONE;
    if (build->arena.used > KEEP_ARENA)
        semel__arena_done(&build->arena);
    else
        semel__arena_reset(&build->arena);
    if (build->cap_body > KEEP_BODY) {
        semel__free(build->body);
        build->body = NULL;
        build->cap_body = 0;
    }
}

void semel__amqp_build_done(struct amqp_build *build)
{
    semel__arena_done(&build->arena);
    semel__free(build->body);
    build->body = NULL;
    build->cap_body = 0;
}

static semel_status misplaced(struct semel_error *err)
{
    return semel__fail(err, SEMEL_RETRY, SEMEL_CLASS_ENVIRONMENT, "amqp: the server sent a frame that does not fit");
}

semel_status semel__amqp_build_deliver(struct amqp_build *build, const amqp_basic_deliver_t *deliver,
                                       struct semel_error *err)
{
    if (build->stage != AMQP_STAGE_NONE || deliver->delivery_tag <= build->number ||
        deliver->delivery_tag > AMQP_NUMBER_MAX)
        return misplaced(err);
    build->number = deliver->delivery_tag;
    build->redelivered = deliver->redelivered != 0;
    if (!semel__arena_copy(&build->arena, semel__amqp_str(deliver->exchange), &build->exchange) ||
        !semel__arena_copy(&build->arena, semel__amqp_str(deliver->routing_key), &build->routing_key))
        return semel__fail_memory(err);
    build->stage = AMQP_STAGE_HEADER;
    return SEMEL_OK;
}

static bool make_body(struct amqp_build *build, size_t n)
{
    build->have = 0;
    build->n_body = n;
    if (build->body != NULL && n <= build->cap_body)
        return true;
    semel__free(build->body);
    build->cap_body = n > 4096 ? n : 4096;
    build->body = semel__alloc(build->cap_body);
    if (build->body == NULL)
        build->cap_body = 0;
    return build->body != NULL;
}

static void check_whole(struct amqp_build *build)
{
    if (build->have < build->n_body)
        return;
    build->d.payload = build->n_body > 0 ? (struct semel_str){build->body, build->n_body} : SEMEL_STR("");
    build->stage = AMQP_STAGE_WHOLE;
}

static semel_status take_header(struct amqp_build *build, const amqp_frame_t *frame, struct semel_error *err)
{
    const amqp_basic_properties_t *properties = frame->payload.properties.decoded;
    const uint64_t size = frame->payload.properties.body_size;

    if (frame->payload.properties.class_id != AMQP_BASIC_CLASS || size > AMQP_BODY_MAX)
        return misplaced(err);
    build->d = (struct semel_delivery){.delivery = build->redelivered ? semel__amqp_delivery_count(properties) : 1};
    if (((properties->_flags & AMQP_BASIC_HEADERS_FLAG) != 0 &&
         !semel__amqp_headers(&properties->headers, &build->arena, &build->d)) ||
        !semel__amqp_properties(properties, build->routing_key, build->exchange, &build->arena, &build->d) ||
        !make_body(build, (size_t)size))
        return semel__fail_memory(err);
    build->stage = AMQP_STAGE_BODY;
    check_whole(build);
    return SEMEL_OK;
}

semel_status semel__amqp_build_content(struct amqp_build *build, const amqp_frame_t *frame, struct semel_error *err)
{
    const struct semel_str piece = frame->frame_type == AMQP_FRAME_BODY ? semel__amqp_str(frame->payload.body_fragment)
                                                                        : (struct semel_str){NULL, 0};

    if (frame->frame_type == AMQP_FRAME_HEADER)
        return build->stage == AMQP_STAGE_HEADER ? take_header(build, frame, err) : misplaced(err);
    if (build->stage != AMQP_STAGE_BODY || piece.n > build->n_body - build->have)
        return misplaced(err);
    if (piece.n > 0)
        memcpy(build->body + build->have, piece.p, piece.n);
    build->have += piece.n;
    check_whole(build);
    return SEMEL_OK;
}

/* ---- handing it over ---------------------------------------------------------------------------------- */

static bool copy_pairs(struct semel_arena *arena, const struct semel_pair *pairs, size_t n,
                       const struct semel_pair **ret)
{
    struct semel_pair *copy = semel__arena_alloc(arena, n, sizeof *copy);

    for (size_t i = 0; copy != NULL && i < n; i++)
        if (!semel__arena_copy(arena, pairs[i].name, &copy[i].name) ||
            !semel__arena_copy(arena, pairs[i].value, &copy[i].value))
            return false;
    *ret = copy;
    return copy != NULL;
}

bool semel__amqp_build_copy(const struct amqp_build *build, struct semel_arena *arena, struct semel_delivery *ret)
{
    *ret = build->d;
    return semel__arena_copy(arena, build->d.payload, &ret->payload) &&
           copy_pairs(arena, build->d.headers, build->d.n_headers, &ret->headers) &&
           copy_pairs(arena, build->d.properties, build->d.n_properties, &ret->properties);
}
