/* SPDX-License-Identifier: MIT
 *
 * mem_inbox.c: admit, fetch and settle of the in-memory store.
 *
 * What it is: facts out, changes in, exactly as core/store.h says. No rule is decided here.
 *
 * Invariants: an operation that fails undoes its own part of the log, so that RETRY means "nothing was changed by
 * this call". Facts of a key do not count rows that this transaction inserted (rec.born). The order within admit is
 * that of a real database: keys, business keys, insert, then found rows and watermarks.
 */
#include "store/mem_private.h"

static struct mem_store *self(struct semel_store *store)
{
    return (struct mem_store *)store;
}

bool semel__mem_row_copy(struct semel_arena *arena, const struct semel_row *row, bool with_payload,
                         struct semel_row *ret)
{
    struct semel_row copy = *row;

    if (!with_payload)
        copy.payload = copy.headers = MEM_NO_STR;
    struct semel_str *const strs[] = {&copy.source,          &copy.id,          &copy.type,
                                      &copy.order_key,       &copy.position,    &copy.headers,
                                      &copy.payload,         &copy.traceparent, &copy.live.lease_owner,
                                      &copy.live.error_text, &copy.live.outcome};
    for (size_t i = 0; i < sizeof strs / sizeof strs[0]; i++)
        if (!semel__arena_copy(arena, *strs[i], strs[i]))
            return false;
    for (size_t i = 0; i < copy.n_wants; i++)
        if (!semel__arena_copy(arena, copy.wants[i], &copy.wants[i]))
            return false;
    *ret = copy;
    return true;
}

/* ---- facts -------------------------------------------------------------------------------------------- */

static bool before(const struct semel_row *a, const struct semel_row *b, bool by_version)
{
    if (by_version && a->version != b->version)
        return a->version < b->version;
    return a->arrival < b->arrival;
}

/* false: no memory. */
static bool read_versions(const struct mem_order_key *stored, struct semel_arena *arena, struct semel_key *key)
{
    key->last_version = stored != NULL ? stored->last_version : SEMEL_NONE;
    key->skipped = NULL;
    key->n_skipped = stored != NULL ? stored->skipped.n / sizeof *key->skipped : 0;
    if (key->n_skipped == 0)
        return true;
    int64_t *skipped = semel__arena_alloc(arena, key->n_skipped, sizeof *skipped);
    if (skipped != NULL)
        memcpy(skipped, stored->skipped.p, stored->skipped.n);
    key->skipped = skipped;
    return skipped != NULL;
}

/* false: no memory. */
static bool read_keys(struct semel_mem_db *db, struct mem_consumer *consumer, struct semel_key *keys, size_t n_keys,
                      struct semel_arena *arena)
{
    for (size_t i = 0; i < n_keys; i++) {
        struct semel_key *key = &keys[i];
        const struct mem_order_key *stored = semel__mem_find(db, MEM_KEY, consumer, key->key, MEM_NO_STR, MEM_NO_STR);

        if (!read_versions(stored, arena, key))
            return false;
        const struct semel_row *head = NULL;
        key->parked = 0;
        key->open = false;
        for (struct mem_rec *rec = semel__mem_side_first(db, MEM_ROW, consumer, key->key, MEM_NO_STR); rec != NULL;
             rec = semel__mem_side_next(rec)) {
            const struct semel_row *row = &((struct mem_row *)rec)->row;
            if (rec->born == db->tx)
                continue;
            if (head == NULL || before(row, head, key->by_version))
                head = row;
            key->parked += row->live.state == SEMEL_STATE_WAITING;
            key->open |= row->live.state == SEMEL_STATE_PROCESSING || row->live.state == SEMEL_STATE_UNKNOWN;
        }
        key->head_arrival = head != NULL ? head->arrival : SEMEL_NONE;
        key->head_version = head != NULL ? head->version : SEMEL_NONE;
    }
    return true;
}

/* false: no memory. */
static bool read_row(const struct mem_row *row, struct semel_arena *arena, struct semel_row *ret, bool *ret_damaged,
                     struct semel_error *damage)
{
    *ret_damaged = semel__row_check(&row->row, damage) != SEMEL_OK;
    return *ret_damaged || semel__mem_row_copy(arena, &row->row, true, ret);
}

/* ---- admit -------------------------------------------------------------------------------------------- */

static bool expired(const struct mem_business *held, int64_t now_us)
{
    return held->expires_us != SEMEL_NONE && held->expires_us <= now_us;
}

static bool wishes_for(const struct semel_row *row, struct semel_str key)
{
    for (size_t i = 0; i < row->n_wants; i++)
        if (semel__str_eq(row->wants[i], key))
            return true;
    return false;
}

static void read_holder(struct semel_mem_db *db, struct mem_consumer *consumer, const struct mem_business *held,
                        struct semel_business *business)
{
    const struct mem_row *row = semel__mem_find(db, MEM_ROW, consumer, held->source, held->id, MEM_NO_STR);
    business->unfinished = row != NULL && semel__state_unfinished(row->row.live.state);
    for (const struct mem_row *other = consumer->unfinished; other != NULL; other = other->next)
        business->wanted += wishes_for(&other->row, held->key);
}

static bool take_business(struct semel_mem_db *db, struct mem_consumer *consumer, struct semel_business *business,
                          int64_t now_us, struct semel_arena *arena)
{
    struct mem_business *held = semel__mem_find(db, MEM_BUSINESS, consumer, business->key, MEM_NO_STR, MEM_NO_STR);
    const struct mem_business proto = {.rec.key.consumer = consumer,
                                       .key = business->key,
                                       .source = business->source,
                                       .id = business->id,
                                       .expires_us = business->expires_us};
    struct mem_business *image;

    business->taken = business->inserted = business->unfinished = false;
    business->wanted = 0;
    business->held_source = business->held_id = MEM_NO_STR;
    if (held != NULL && !expired(held, now_us)) {
        business->taken = !semel__str_eq(held->source, business->source) || !semel__str_eq(held->id, business->id);
        if (business->taken)
            read_holder(db, consumer, held, business);
        return !business->taken || (semel__arena_copy(arena, held->source, &business->held_source) &&
                                    semel__arena_copy(arena, held->id, &business->held_id));
    }
    image = semel__mem_image(MEM_BUSINESS, &proto);
    if (image == NULL || !semel__mem_put(db, MEM_BUSINESS, held, image))
        return false;
    business->inserted = true;
    return true;
}

static bool insert_row(struct semel_mem_db *db, struct mem_consumer *consumer, struct semel_row *row)
{
#ifdef SEMEL_MUTANT_NO_INSERT
    (void)db;
    (void)consumer;
    (void)row;
    return true;
#else
    struct mem_row proto = {.rec.key.consumer = consumer, .row = *row};
    struct mem_row *image;

    if (!row->kept)
        proto.row.payload = proto.row.headers = MEM_NO_STR;
    image = semel__mem_image(MEM_ROW, &proto);
    return image != NULL && semel__mem_put(db, MEM_ROW, NULL, image);
#endif
}

/* `first_arrival` is the number of place 0. */
static bool admit_item(struct semel_mem_db *db, struct mem_consumer *consumer, struct semel_admit *item,
                       int64_t first_arrival, struct semel_arena *arena)
{
    const struct mem_row *there = semel__mem_find(db, MEM_ROW, consumer, item->row.source, item->row.id, MEM_NO_STR);

    item->inserted = item->damaged = false;
    if (there != NULL)
        return read_row(there, arena, &item->found, &item->damaged, &item->damage);
    item->row.arrival = first_arrival + (int64_t)item->place;
    item->inserted = insert_row(db, consumer, &item->row);
    return item->inserted;
}

static void read_watermarks(struct semel_mem_db *db, struct mem_consumer *consumer, struct semel_admit_batch *batch)
{
    for (size_t i = 0; i < batch->n_items; i++) {
        struct semel_admit *item = &batch->items[i];
        item->watermark_us = SEMEL_NONE;
#ifndef SEMEL_MUTANT_NO_WATERMARK
        const struct mem_watermark *stored = semel__mem_find(db, MEM_WATERMARK, consumer, item->row.source, MEM_NO_STR,
                                                             MEM_NO_STR);
        if (stored != NULL)
            item->watermark_us = stored->watermark_us;
#else
        (void)db;
        (void)consumer;
#endif
    }
}

static bool admit(struct semel_mem_db *db, struct semel_admit_batch *batch, struct semel_arena *arena)
{
    struct mem_consumer *consumer = semel__mem_consumer_make(db, batch->consumer);
    const int64_t first_arrival = db->last_arrival + 1;

    if (consumer == NULL || !read_keys(db, consumer, batch->keys, batch->n_keys, arena))
        return false;
    for (size_t i = 0; i < batch->n_items; i++)
        if (first_arrival + (int64_t)batch->items[i].place > db->last_arrival)
            db->last_arrival = first_arrival + (int64_t)batch->items[i].place;
    for (size_t i = 0; i < batch->n_business; i++)
        if (!take_business(db, consumer, &batch->business[i], batch->now_us, arena))
            return false;
    for (size_t i = 0; i < batch->n_items; i++)
        if (!admit_item(db, consumer, &batch->items[i], first_arrival, arena))
            return false;
    read_watermarks(db, consumer, batch);
    return true;
}

semel_status semel__mem_admit(struct semel_store *store, struct semel_admit_batch *batch, struct semel_arena *arena,
                              struct semel_error *err)
{
    struct semel_mem_db *db = self(store)->db;
    semel_status status = semel__mem_enter(self(store), "admit", true, err);
    const size_t mark = db->n_undo;

    if (status != SEMEL_OK)
        return status;
    if (!admit(db, batch, arena)) {
        semel__mem_undo_to(db, mark);
        return semel__fail_memory(err);
    }
    return SEMEL_OK;
}

/* ---- fetch -------------------------------------------------------------------------------------------- */

semel_status semel__mem_fetch(struct semel_store *store, struct semel_fetch_batch *batch, struct semel_arena *arena,
                              struct semel_error *err)
{
    struct semel_mem_db *db = self(store)->db;
    semel_status status = semel__mem_enter(self(store), "fetch", true, err);
    struct mem_consumer *consumer = semel__mem_consumer(db, batch->consumer);
    const size_t mark = db->n_undo;

    if (status != SEMEL_OK)
        return status;
    if (!read_keys(db, consumer, batch->keys, batch->n_keys, arena))
        return semel__fail_memory(err);
    for (size_t i = 0; i < batch->n_business; i++)
        if (!take_business(db, consumer, &batch->business[i], batch->now_us, arena)) {
            semel__mem_undo_to(db, mark);
            return semel__fail_memory(err);
        }
    for (size_t i = 0; i < batch->n_items; i++) {
        struct semel_fetched *item = &batch->items[i];
        const struct mem_row *there = semel__mem_find(db, MEM_ROW, consumer, item->source, item->id, MEM_NO_STR);
        item->present = there != NULL;
        item->damaged = false;
        if (there != NULL && !read_row(there, arena, &item->row, &item->damaged, &item->damage))
            return semel__fail_memory(err);
    }
    return SEMEL_OK;
}

/* ---- settle ------------------------------------------------------------------------------------------- */

static bool put_attempt(struct semel_mem_db *db, struct mem_consumer *consumer, const struct semel_settle_batch *batch,
                        const struct semel_note *note)
{
    const struct mem_attempt proto = {.rec.key.consumer = consumer,
                                      .attempt = {.consumer = consumer->name,
                                                  .source = note->source,
                                                  .id = note->id,
                                                  .who = batch->worker,
                                                  .attempt = note->attempt,
                                                  .cls = note->cls,
                                                  .text = note->text,
                                                  .at_us = batch->now_us,
                                                  .seq = ++db->last_seq}};
    struct mem_attempt *image = semel__mem_image(MEM_ATTEMPT, &proto);

    return image != NULL && semel__mem_put(db, MEM_ATTEMPT, NULL, image);
}

/* Those that wait for the key look at once. */
static bool make_due(struct semel_mem_db *db, const struct mem_consumer *consumer, struct semel_str key, int64_t now_us)
{
    for (struct mem_row *row = consumer->unfinished, *next; row != NULL; row = next) {
        struct mem_row proto = *row, *image;
        next = row->next;
        if (!semel__live_waits_for_intent(&row->row.live) || !wishes_for(&row->row, key))
            continue;
        proto.row.live.due_us = now_us;
        proto.row.updated_us = now_us >= row->row.updated_us ? now_us : row->row.updated_us + 1;
        image = semel__mem_image(MEM_ROW, &proto);
        if (image == NULL || !semel__mem_put(db, MEM_ROW, row, image))
            return false;
    }
    return true;
}

static bool release_business(struct semel_mem_db *db, struct mem_consumer *consumer, struct semel_str source,
                             struct semel_str id, int64_t now_us)
{
    struct mem_rec *rec;

    while ((rec = semel__mem_side_first(db, MEM_BUSINESS, consumer, source, id)) != NULL)
        if (!make_due(db, consumer, ((struct mem_business *)rec)->key, now_us) ||
            !semel__mem_put(db, MEM_BUSINESS, rec, NULL))
            return false;
    return true;
}

static bool hold_until(struct semel_mem_db *db, struct mem_consumer *consumer, const struct semel_hold *hold)
{
    /* An image goes to the front of its bucket: no key is met twice. */
    for (struct mem_rec *rec = semel__mem_side_first(db, MEM_BUSINESS, consumer, hold->source, hold->id), *next;
         rec != NULL; rec = next) {
        struct mem_business proto = *(struct mem_business *)rec, *image;
        next = semel__mem_side_next(rec);
        proto.expires_us = hold->until_us;
        image = semel__mem_image(MEM_BUSINESS, &proto);
        if (image == NULL || !semel__mem_put(db, MEM_BUSINESS, rec, image))
            return false;
    }
    return true;
}

/* key not given: none of its wishes is left. */
static bool put_want(struct semel_mem_db *db, struct mem_consumer *consumer, const struct semel_want *want)
{
    struct mem_row *row = semel__mem_find(db, MEM_ROW, consumer, want->source, want->id, MEM_NO_STR);
    struct mem_row proto, *image;

    if (row == NULL || (semel__str_given(want->key) && wishes_for(&row->row, want->key)))
        return true;
    proto = *row;
    if (!semel__str_given(want->key)) {
        proto.row.n_wants = 0;
        memset(proto.row.wants, 0, sizeof proto.row.wants);
    } else {
        proto.row.wants[proto.row.n_wants++] = want->key;
    }
    image = semel__mem_image(MEM_ROW, &proto);
    return image != NULL && semel__mem_put(db, MEM_ROW, row, image);
}

static bool fits(const struct mem_row *row, const struct semel_change *change)
{
    if (row == NULL || row->row.live.state != change->from)
        return false;
#ifndef SEMEL_MUTANT_NO_TOKEN
    if (change->token != SEMEL_NONE && row->row.live.lease_token != change->token)
        return false; /* P39 */
#endif
    return true;
}

static bool write_row(struct semel_mem_db *db, struct mem_row *row, const struct semel_change *change)
{
    struct mem_row proto = *row;
    struct mem_row *image;

    proto.row.live = change->live;
    proto.row.updated_us = change->updated_us;
    switch (change->payload) {
    case SEMEL_PAYLOAD_AS_IS:
        break;
    case SEMEL_PAYLOAD_CLEAR:
        proto.row.payload = proto.row.headers = MEM_NO_STR;
        proto.row.kept = false;
        break;
    case SEMEL_PAYLOAD_PUT:
        proto.row.payload = change->put->payload;
        proto.row.headers = change->put->headers;
        proto.row.kept = true;
        if (proto.row.fp.kind == SEMEL_FP_NONE)
            proto.row.fp = change->put->fp;
        break;
    }
    image = semel__mem_image(MEM_ROW, &proto);
    return image != NULL && semel__mem_put(db, MEM_ROW, row, image);
}

static bool settle_row(struct semel_mem_db *db, struct mem_consumer *consumer, struct semel_settle_batch *batch,
                       struct semel_change *change)
{
    struct mem_row *row = semel__mem_find(db, MEM_ROW, consumer, change->source, change->id, MEM_NO_STR);
    const struct semel_note note = {change->source, change->id, change->live.attempts, change->live.error_class,
                                    change->live.error_text};

    change->applied = fits(row, change);
    if (!change->applied)
        return true;
    if (change->remove) {
        if (!semel__mem_put(db, MEM_ROW, row, NULL))
            return false;
    } else if (!write_row(db, row, change)) {
        return false;
    }
    if (change->log_attempt && !put_attempt(db, consumer, batch, &note))
        return false;
    return !change->release_business || release_business(db, consumer, change->source, change->id, batch->now_us);
}

static bool wake_first(struct semel_mem_db *db, struct mem_consumer *consumer, const struct semel_key_change *key,
                       int64_t now_us)
{
    struct mem_row *first = NULL, *image, proto;

    for (struct mem_rec *rec = semel__mem_side_first(db, MEM_ROW, consumer, key->key, MEM_NO_STR); rec != NULL;
         rec = semel__mem_side_next(rec)) {
        struct mem_row *row = (struct mem_row *)rec;
        if (first == NULL || before(&row->row, &first->row, key->by_version))
            first = row;
    }
    if (first == NULL || first->row.live.state != SEMEL_STATE_WAITING)
        return true;
    proto = *first;
    proto.row.live.due_us = now_us;
    proto.row.live.error_class = SEMEL_CLASS_BLOCKED;
    proto.row.updated_us = now_us >= first->row.updated_us ? now_us : first->row.updated_us + 1;
    image = semel__mem_image(MEM_ROW, &proto);
    return image != NULL && semel__mem_put(db, MEM_ROW, first, image);
}

static bool settle_key(struct semel_mem_db *db, struct mem_consumer *consumer, const struct semel_key_change *key,
                       int64_t now_us)
{
    struct mem_order_key *stored = semel__mem_find(db, MEM_KEY, consumer, key->key, MEM_NO_STR, MEM_NO_STR);
    struct mem_order_key proto = {.rec.key.consumer = consumer,
                                  .key = key->key,
                                  .last_version = stored != NULL ? stored->last_version : SEMEL_NONE,
                                  .skipped = stored != NULL ? stored->skipped : MEM_NO_STR};
    bool raise = key->last_version != SEMEL_NONE && proto.last_version < key->last_version;

    if (raise)
        proto.last_version = key->last_version;
    if (key->skips)
        proto.skipped = (struct semel_str){(const char *)key->skipped, key->n_skipped * sizeof *key->skipped};
    if (raise || key->skips) {
        struct mem_order_key *image = semel__mem_image(MEM_KEY, &proto);
        if (image == NULL || !semel__mem_put(db, MEM_KEY, stored, image))
            return false;
    }
    return !key->wake || wake_first(db, consumer, key, now_us);
}

static bool drop_business(struct semel_mem_db *db, struct mem_consumer *consumer, const struct semel_business *drop)
{
    struct mem_business *held = semel__mem_find(db, MEM_BUSINESS, consumer, drop->key, MEM_NO_STR, MEM_NO_STR);

    if (held == NULL || !semel__str_eq(held->source, drop->source) || !semel__str_eq(held->id, drop->id))
        return true;
    return semel__mem_put(db, MEM_BUSINESS, held, NULL);
}

/* Room for one more conflict of the message: the one that came longest ago goes. */
static bool bound_conflicts(struct semel_mem_db *db, const struct mem_consumer *consumer, const struct semel__msg *msg)
{
    struct mem_conflict *oldest = NULL;
    size_t n = 0;
    for (struct mem_rec *rec = NULL; (rec = semel__mem_next(db, MEM_CONFLICT, rec)) != NULL;) {
        struct mem_conflict *one = (struct mem_conflict *)rec;
        if (rec->key.consumer != consumer || !semel__str_eq(one->conflict.id, msg->id) ||
            !semel__str_eq(one->conflict.source, msg->source))
            continue;
        n++;
        if (oldest == NULL || one->conflict.last_us < oldest->conflict.last_us)
            oldest = one;
    }
    return n < SEMEL_CONFLICTS_MAX || semel__mem_put(db, MEM_CONFLICT, oldest, NULL);
}

static bool count_conflict(struct semel_mem_db *db, struct mem_consumer *consumer, const struct semel__msg *msg,
                           int64_t now_us)
{
    const struct semel_str fp = {(const char *)&msg->fp, 2 + (size_t)msg->fp.n};
    struct mem_conflict *stored = semel__mem_find(db, MEM_CONFLICT, consumer, msg->source, msg->id, fp);
    struct mem_conflict proto = {.rec.key.consumer = consumer,
                                 .conflict = {.consumer = consumer->name,
                                              .source = msg->source,
                                              .id = msg->id,
                                              .fp = msg->fp,
                                              .first_us = now_us,
                                              .payload = msg->payload,
                                              .headers = msg->headers}};
    struct mem_conflict *image;

    if (stored != NULL)
        proto.conflict = stored->conflict;
    else if (!bound_conflicts(db, consumer, msg))
        return false;
    proto.conflict.count++;
    proto.conflict.last_us = now_us;
    image = semel__mem_image(MEM_CONFLICT, &proto);
    return image != NULL && semel__mem_put(db, MEM_CONFLICT, stored, image);
}

static bool settle(struct semel_mem_db *db, struct semel_settle_batch *batch)
{
    struct mem_consumer *consumer = semel__mem_consumer_make(db, batch->consumer);

    if (consumer == NULL)
        return false;
    for (size_t i = 0; i < batch->n_changes; i++)
        if (!settle_row(db, consumer, batch, &batch->changes[i]))
            return false;
    for (size_t i = 0; i < batch->n_granted; i++)
        if (!put_want(db, consumer, &batch->granted[i]))
            return false;
    for (size_t i = 0; i < batch->n_wants; i++)
        if (!put_want(db, consumer, &batch->wants[i]))
            return false;
    for (size_t i = 0; i < batch->n_holds; i++)
        if (!hold_until(db, consumer, &batch->holds[i]))
            return false;
    for (size_t i = 0; i < batch->n_keys; i++)
        if (!settle_key(db, consumer, &batch->keys[i], batch->now_us))
            return false;
    for (size_t i = 0; i < batch->n_drop; i++)
        if (!drop_business(db, consumer, &batch->drop[i]))
            return false;
    for (size_t i = 0; i < batch->n_conflicts; i++)
        if (!count_conflict(db, consumer, batch->conflicts[i].msg, batch->now_us))
            return false;
    for (size_t i = 0; i < batch->n_notes; i++)
        if (!put_attempt(db, consumer, batch, &batch->notes[i]))
            return false;
    return true;
}

semel_status semel__mem_settle(struct semel_store *store, struct semel_settle_batch *batch, struct semel_error *err)
{
    struct semel_mem_db *db = self(store)->db;
    semel_status status = semel__mem_enter(self(store), "settle", true, err);
    const size_t mark = db->n_undo;

    if (status != SEMEL_OK)
        return status;
    if (!settle(db, batch)) {
        semel__mem_undo_to(db, mark);
        return semel__fail_memory(err);
    }
    return SEMEL_OK;
}
