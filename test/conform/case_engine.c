/* SPDX-License-Identifier: MIT
 *
 * case_engine.c: a case through the real engine on a real store: rows are planted through the store's own operations,
 * the event happens through the functions of inbox.h, and everything that the case names is read back.
 */
#include "conform/cases.h"
#include "core/consumer.h"

static semel_status handle(void *ctx, struct semel_store *store, const struct semel__msg *msg, int attempt,
                           struct semel__reply *reply, struct semel_error *err)
{
    struct engine *engine = ctx;
    struct semel_str outcome = {0};

    (void)store;
    if (!semel__str_eqz(msg->id, engine->kase->id))
        return SEMEL_OK;
    engine->runs++;
    if (attempt != (engine->there ? engine->before.progress.attempts : 0) + 1)
        differ(engine->finding, "attempt: the handler was told %d", attempt);
    if (engine->says == HANDLER_ENVIRONMENT)
        return semel__fail(err, SEMEL_RETRY, SEMEL_CLASS_ENVIRONMENT, "the disk is full");
    if (engine->says == HANDLER_BROKEN)
        return semel__fail(err, SEMEL_INVALID, SEMEL_CLASS_BROKEN, "no such table");
    if (engine->kase->when.outcome == 1)
        outcome = SEMEL_STR("{\"o\":2}");
    return semel__reply_set(reply, (enum semel_result)engine->says, SEMEL_STR("because"), outcome)
               ? SEMEL_OK
               : semel__fail_memory(err);
}

/* ---- planting ----------------------------------------------------------------------------------------- */

static void plant(struct world *world, const struct semel_row *row, const char *business)
{
    struct semel_admit item = {.row = *row};
    struct semel_key key = {.key = row->order_key};
    struct semel_business held = {.key = text(business),
                                  .source = row->source,
                                  .id = row->id,
                                  .expires_us = SEMEL_NONE};
    struct semel_admit_batch batch = {.consumer = SEMEL_STR("c"),
                                      .now_us = world->now_us,
                                      .keys = &key,
                                      .n_keys = row->order_key.p != NULL ? 1 : 0,
                                      .business = &held,
                                      .n_business = business != NULL ? 1 : 0,
                                      .items = &item,
                                      .n_items = 1};

    begin(world);
    assert_ok(world, semel_store_admit(world->store, &batch, &world->arena, &world->err));
    commit(world);
}

/* The business key is held by a message that has no row. */
static void plant_holder(struct world *world, const char *id)
{
    struct semel_business held = {.key = SEMEL_STR("intent"),
                                  .source = SEMEL_STR("s"),
                                  .id = text(id),
                                  .expires_us = SEMEL_NONE};
    struct semel_admit_batch batch = {.consumer = SEMEL_STR("c"),
                                      .now_us = world->now_us,
                                      .business = &held,
                                      .n_business = 1};

    begin(world);
    assert_ok(world, semel_store_admit(world->store, &batch, &world->arena, &world->err));
    commit(world);
}

static void plant_want(struct world *world, const char *id)
{
    struct semel_want want = {SEMEL_STR("intent"), SEMEL_STR("s"), text(id)};
    struct semel_settle_batch batch = {.consumer = SEMEL_STR("c"),
                                       .worker = SEMEL_STR("worker-0"),
                                       .now_us = world->now_us,
                                       .wants = &want,
                                       .n_wants = 1};

    begin(world);
    assert_ok(world, semel_store_settle(world->store, &batch, &world->err));
    commit(world);
}

static void plant_versions(struct world *world, int64_t last, int64_t skipped)
{
    int64_t list[SEMEL_SKIPPED_MAX];
    struct semel_key key = {.key = SEMEL_STR("k")};
    struct semel_key_change change = {.key = SEMEL_STR("k"),
                                      .last_version = last != UNSAID ? last : SEMEL_NONE,
                                      .skips = skipped != UNSAID,
                                      .skipped = list};
    struct semel_settle_batch batch = {.consumer = SEMEL_STR("c"),
                                       .worker = SEMEL_STR("worker-0"),
                                       .now_us = world->now_us,
                                       .keys = &change,
                                       .n_keys = 1};

    case_skipped(skipped, list, &change.n_skipped);
    begin(world);
    admit_keyed(world, NULL, 0, &key, 1);
    assert_ok(world, semel_store_settle(world->store, &batch, &world->err));
    commit(world);
}

static void plant_parked(struct engine *engine, int64_t n, const char *prefix, const char *key)
{
    struct semel_row row;
    char id[32];

    for (int64_t i = 0; n != UNSAID && i < n; i++) {
        int64_t version = engine->policy.order == SEMEL_ORDER_VERSION ? 1000 + i : -1;
        snprintf(id, sizeof id, "%s%lld", prefix, (long long)i);
        case_other_row(id, (version + 1) * 16 + SEMEL_ROW_WAITING, &engine->policy, &row);
        row.order_key = text(key);
        plant(engine->world, &row, NULL);
    }
}

/* B9: they have no key, and every payload of a case is larger than the limit of a case about too_large. */
static void plant_large(struct engine *engine, int64_t n)
{
    struct semel_row row;
    char id[32];

    for (int64_t i = 0; n != UNSAID && i < n; i++) {
        snprintf(id, sizeof id, "l%lld", (long long)i);
        case_other_row(id, i % 2 == 0 ? SEMEL_ROW_DEAD : SEMEL_ROW_QUARANTINED, &engine->policy, &row);
        row.order_key = (struct semel_str){0};
        plant(engine->world, &row, NULL);
    }
}

static void plant_other(struct engine *engine, const char *id, int64_t other, int64_t due)
{
    struct semel_row row;

    if (other == UNSAID)
        return;
    case_other_row(id, other, &engine->policy, &row);
    if (due != UNSAID)
        row.progress.due_us = case_at(due);
    plant(engine->world, &row, NULL);
}

static void plant_all(struct engine *engine)
{
    const struct case_given *given = &engine->kase->given;
    struct world *world = engine->world;
    struct semel_row row;

    plant_other(engine, "a", given->ahead, UNSAID);
    plant_parked(engine, given->parked, "p", "k");
    plant_parked(engine, given->parked_elsewhere, "q", "elsewhere");
    plant_large(engine, given->large);
    if (given->business == HELD_OTHER || given->business == HELD_BUSY) {
        case_other_row("x", given->business == HELD_BUSY ? SEMEL_ROW_FAILED : SEMEL_ROW_COMPLETED, &engine->policy,
                       &row);
        row.order_key = (struct semel_str){0};
        plant(world, &row, "intent");
    }
    if (given->business == HELD_GONE)
        plant_holder(world, "x");
    if (given->business == HELD_OWN && !case_has_row(engine->kase))
        plant_holder(world, CASE_ID);
    if (case_has_row(engine->kase)) {
        case_row_of(engine->kase, &engine->policy, &row);
        plant(world, &row, given->business == HELD_OWN ? "intent" : NULL);
    }
    if (given->wants == 1)
        plant_want(world, CASE_ID);
    plant_other(engine, "b", given->behind, given->behind_due);
    if (given->last != UNSAID || given->skipped != UNSAID)
        plant_versions(world, given->last, given->skipped);
    if (given->behind_wants == 1)
        plant_want(world, "b");
    if (given->watermark != UNSAID) {
        begin(world);
        assert_ok(world, semel_store_watermark(world->store, SEMEL_STR("c"), SEMEL_STR("s"), case_at(given->watermark),
                                               &world->err));
        commit(world);
    }
}

/* ---- looking ------------------------------------------------------------------------------------------ */

static bool look(struct world *world, const char *id, struct semel_row *ret, bool *ret_damaged)
{
    struct semel_fetched item = {.source = SEMEL_STR("s"), .id = text(id)};
    struct semel_fetch_batch batch = {.consumer = SEMEL_STR("c"), .items = &item, .n_items = 1};

    begin(world);
    assert_ok(world, semel_store_fetch(world->store, &batch, &world->arena, &world->err));
    semel_store_rollback(world->store);
    *ret = item.row;
    *ret_damaged = item.damaged;
    return item.present;
}

/* Who holds the business key now? */
static int64_t holder(struct world *world)
{
    struct semel_business held = {.key = SEMEL_STR("intent"),
                                  .source = SEMEL_STR("s"),
                                  .id = SEMEL_STR("probe"),
                                  .expires_us = SEMEL_NONE};
    struct semel_admit_batch batch = {.consumer = SEMEL_STR("c"),
                                      .now_us = world->now_us,
                                      .business = &held,
                                      .n_business = 1};

    begin(world);
    assert_ok(world, semel_store_admit(world->store, &batch, &world->arena, &world->err));
    semel_store_rollback(world->store);
    return !held.taken ? HELD_FREE : semel__str_eqz(held.held_id, CASE_ID) ? HELD_OWN : HELD_OTHER;
}

/* A purge that took a row away leaves the watermark just above it. */
static bool raised(const struct kase *kase)
{
    return kase->when.op == OP_PURGE && kase->verdict.says == SAYS_DONE && kase->becomes.watermark != NEVER &&
           kase->becomes.watermark != kase->given.watermark;
}

static int64_t watermark(const struct engine *engine)
{
    struct world *world = engine->world;
    struct semel_admit item = item_of("probe", SEMEL_ROW_COMPLETED, NULL, SEMEL_NONE);

    begin(world);
    admit(world, &item, 1);
    semel_store_rollback(world->store);
    return item.watermark_us != SEMEL_NONE ? item.watermark_us - raised(engine->kase) : SEMEL_NONE;
}

/* ---- what happens ------------------------------------------------------------------------------------- */

void expect_verdict(struct engine *engine, int64_t says, enum semel_why why)
{
    static const char *const names[] = {"run", "ack", "later", "done", "nothing", "refused", "fenced"};
    const struct case_verdict *said = &engine->kase->verdict;
    bool same = said->says == says && (said->why == UNSAID || why == SEMEL_WHY_UNSET || said->why == (int64_t)why);

    if (!same)
        differ(engine->finding, "verdict: expected %s %s, found %s %s", names[said->says],
               said->why != UNSAID ? semel__why_name((enum semel_why)said->why) : "", names[says],
               why != SEMEL_WHY_UNSET ? semel__why_name(why) : "");
}

void expect_ok(struct engine *engine, semel_status status, const struct semel_error *err)
{
    if (status != SEMEL_OK)
        differ(engine->finding, "the call failed: %s: %s", semel__status_name(status), err->text);
}

static void deliver(struct engine *engine)
{
    const struct kase *kase = engine->kase;
    bool worldly = engine->says >= HANDLER_ENVIRONMENT;
    struct semel__msg msgs[2];
    struct semel_settled settled[2];
    struct semel_error err = {0};

    case_msg_of(kase, &engine->policy, &msgs[0]);
    msgs[1] = msgs[0];
    msgs[1].id = SEMEL_STR("w");
    msgs[1].n_business = 0;
    msgs[1].version = kase->when.with;
    semel_status status = semel__inbox_process(&engine->inbox, msgs, kase->when.with != UNSAID ? 2 : 1, settled, &err);
    engine->settled = settled[0];
    engine->state_reported = !worldly;
    if (!worldly)
        expect_ok(engine, status, &err);
    else if (engine->runs > 0 && status == SEMEL_OK)
        differ(engine->finding, "the world failed, and the call did not say so");
    if (engine->runs == 0) {
        expect_verdict(engine, settled[0].act == SEMEL_ACK ? SAYS_ACK : SAYS_LATER, settled[0].why);
        return;
    }
    expect_verdict(engine, SAYS_RUN, worldly ? SEMEL_WHY_UNSET : settled[0].why);
    if (engine->runs > 1 && kase->when.with == UNSAID)
        differ(engine->finding, "the handler ran %d times", engine->runs);
    if (kase->verdict.then != UNSAID && kase->verdict.then != (int64_t)settled[0].act)
        differ(engine->finding, "in the end: expected %s, found %s",
               semel__act_name((enum semel_act)kase->verdict.then), semel__act_name(settled[0].act));
}

static void claim(struct engine *engine)
{
    struct semel__msg msg;
    struct semel_lease lease;
    struct semel_error err = {0};
    size_t n = 0;

    case_msg_of(engine->kase, &engine->policy, &msg);
    expect_ok(engine,
              semel__lease_claim(&engine->inbox, &msg, 1, engine->kase->when.alone == 1, &engine->world->arena, &lease,
                                 &n, &engine->settled, &err),
              &err);
    if (n == 0)
        expect_verdict(engine, engine->settled.act == SEMEL_ACK ? SAYS_ACK : SAYS_LATER, engine->settled.why);
    else
        expect_verdict(engine, SAYS_RUN, lease.progress.attempts > 1 ? SEMEL_WHY_RETRIED : SEMEL_WHY_NEW);
}

static void end_lease(struct engine *engine)
{
    const struct case_when *when = &engine->kase->when;
    struct semel_lease lease = {.progress = engine->before.progress, .arrival = engine->before.arrival};
    struct semel_ending ending = {.result = (enum semel_result)when->result, .text = SEMEL_STR("because")};
    struct semel_error err = {0};
    semel_status status;

    if (engine->there)
        semel__row_msg(&engine->before, &lease.msg);
    else
        case_msg_of(engine->kase, &engine->policy, &lease.msg);
    lease.progress.lease_token = when->token == TOKEN_OWN ? engine->before.progress.lease_token
                                                          : case_stale_token(engine->kase, &engine->policy);
    if (when->outcome == 1)
        ending.outcome = SEMEL_STR("{\"o\":2}");
    if (when->op == OP_FINISH)
        status = semel__lease_finish(&engine->inbox, &lease, &ending, 1, &err);
    else if (when->op == OP_RENEW)
        status = semel__lease_renew(&engine->inbox, &lease, 1, &err);
    else
        status = semel__lease_release(&engine->inbox, &lease, 1, &err);
    expect_ok(engine, status, &err);
    expect_verdict(engine, lease.refused ? SAYS_REFUSED : lease.lost ? SAYS_FENCED : SAYS_DONE, SEMEL_WHY_UNSET);
}

static void take(struct engine *engine)
{
    struct semel_lease leases[8];
    struct semel_error err = {0};
    size_t n = 0, ours = 0;
    enum semel_why why = SEMEL_WHY_UNSET;

    expect_ok(engine, semel__lease_take(&engine->inbox, COUNT(leases), &engine->world->arena, leases, &n, &err), &err);
    for (size_t i = 0; i < n; i++)
        if (semel__str_eqz(leases[i].msg.id, CASE_ID)) {
            ours++;
            why = leases[i].progress.attempts > 1 ? SEMEL_WHY_RETRIED : SEMEL_WHY_NEW;
        }
    expect_verdict(engine, ours > 0 ? SAYS_RUN : SAYS_NOTHING, why);
}

static void work(struct engine *engine)
{
    struct semel_error err = {0};
    size_t n = 0;
    semel_status status = semel__inbox_work(&engine->inbox, 8, &n, &err);

    if (engine->says < HANDLER_ENVIRONMENT)
        expect_ok(engine, status, &err);
    expect_verdict(engine, engine->runs > 0 ? SAYS_RUN : SAYS_NOTHING,
                   engine->runs == 0                      ? SEMEL_WHY_UNSET
                   : engine->before.progress.attempts > 0 ? SEMEL_WHY_RETRIED
                                                          : SEMEL_WHY_NEW);
}

static void command(struct engine *engine, enum semel_command_kind kind)
{
    const struct case_when *when = &engine->kase->when;
    struct semel_row row = {.source = SEMEL_STR("s"), .id = SEMEL_STR(CASE_ID), .version = SEMEL_NONE};
    if (engine->there)
        row = engine->before;
    row.updated_us = 0;
    struct semel_command said = {.kind = kind,
                                 .row = &row,
                                 .who = SEMEL_STR("operator"),
                                 .reason = when->no_reason == 1 ? (struct semel_str){0} : SEMEL_STR("because"),
                                 .outcome = when->outcome == 1 ? SEMEL_STR("{\"o\":2}") : (struct semel_str){0},
                                 .force = when->force == 1};
    struct semel_error err = {0};
    struct semel_command_result result;
    semel_status status = semel__inbox_command(&engine->inbox, &said, &result, &err);

    if (status != SEMEL_OK && status != SEMEL_INVALID)
        expect_ok(engine, status, &err);
    expect_verdict(engine,
                   status == SEMEL_INVALID ? SAYS_REFUSED
                   : result.done           ? SAYS_DONE
                                           : SAYS_NOTHING,
                   SEMEL_WHY_UNSET);
}

/* By a person. */
static void set(struct engine *engine)
{
    struct world *world = engine->world;
    struct semel_setting now;
    const struct semel_setter by = {.who = SEMEL_STR("operator")};
    const struct semel_str stored = case_settings(&engine->policy, &world->arena);
    struct semel_error err = {0};
    semel_status status;

    begin(world);
    assert_ok(world, semel_store_consumer_put(world->store, SEMEL_STR("c"), stored, CASE_NOW, &world->err));
    commit(world);
    status = semel__consumer_change(world->store, SEMEL_STR("c"),
                                    case_change(engine->kase, &engine->policy, &world->arena), &by, &world->arena, &now,
                                    &err);
    if (!now.refused)
        expect_ok(engine, status, &err);
    expect_verdict(engine, now.refused ? SAYS_REFUSED : SAYS_DONE, SEMEL_WHY_UNSET);
}

static void scheduled(struct engine *engine,
                      semel_status (*job)(struct semel_inbox *, size_t, size_t *, struct semel_error *))
{
    struct semel_error err = {0};
    size_t n = 0;

    expect_ok(engine, job(&engine->inbox, 100, &n, &err), &err);
    expect_verdict(engine, n > 0 ? SAYS_DONE : SAYS_NOTHING, SEMEL_WHY_UNSET);
}

static semel_status tick(struct semel_inbox *inbox, size_t max, size_t *ret_n, struct semel_error *err)
{
    size_t swept = 0;
    semel_status status = semel__inbox_gaps(inbox, max, ret_n, err);

    if (status == SEMEL_OK)
        status = semel__inbox_sweep(inbox, max, &swept, err);
    *ret_n += swept;
    return status;
}

static void happen(struct engine *engine)
{
    switch ((enum case_op)engine->kase->when.op) {
    case OP_DELIVER:
        deliver(engine);
        return;
    case OP_CLAIM:
        claim(engine);
        return;
    case OP_FINISH:
    case OP_RENEW:
    case OP_RELEASE:
        end_lease(engine);
        return;
    case OP_RECOVER:
        scheduled(engine, semel__inbox_recover);
        return;
    case OP_TAKE:
        take(engine);
        return;
    case OP_WORK:
        work(engine);
        return;
    case OP_RETRY:
        command(engine, SEMEL_COMMAND_RETRY);
        return;
    case OP_DISCARD:
        command(engine, SEMEL_COMMAND_DISCARD);
        return;
    case OP_RESOLVE:
        command(engine, SEMEL_COMMAND_RESOLVE);
        return;
    case OP_PURGE:
        scheduled(engine, semel__inbox_purge);
        return;
    case OP_TICK:
        scheduled(engine, tick);
        return;
    case OP_SET:
        set(engine);
        return;
    }
}

/* ---- what came of it ---------------------------------------------------------------------------------- */

static void expect(struct engine *engine, const char *what, int64_t said, int64_t found)
{
    if (said != UNSAID && said != found)
        differ(engine->finding, "%s: expected %lld, found %lld", what, (long long)said, (long long)found);
}

static void compare_other(struct engine *engine, const char *id, int64_t said, int64_t due, int64_t cls)
{
    struct semel_row row;
    bool damaged, there;

    if (said == UNSAID)
        return;
    there = look(engine->world, id, &row, &damaged);
    if (!there || row.progress.state != OTHER_STATE(said))
        differ(engine->finding, "%s: expected %s, found %s", id, semel__row_status_name(OTHER_STATE(said)),
               semel__row_status_name(there ? row.progress.state : SEMEL_ROW_ABSENT));
    if (there && due != UNSAID && row.progress.due_us != case_at(due))
        differ(engine->finding, "%s: due in %.3fs", id, (double)(row.progress.due_us - CASE_NOW) / 1e6);
    if (there && cls != UNSAID && row.progress.error_class != (enum semel_class)cls)
        differ(engine->finding, "%s: class %s", id, semel__class_name(row.progress.error_class));
}

/* An alert that is not named must not be raised. */
static void compare_alerts(struct engine *engine)
{
    static const char *const names[] = {"dead", "conflict", "quarantined", "unknown", "gap", "damaged", "parked_full"};

    for (int64_t i = 0; i < SEMEL_ALERT_COUNT; i++) {
        uint64_t found = engine->inbox.counts.alerts[i];
        uint64_t expected = engine->kase->becomes.alert == i;
        if (found != expected)
            differ(engine->finding, "alert %s: expected %d, found %d", names[i], (int)expected, (int)found);
    }
}

static void compare_versions(struct engine *engine)
{
    const struct case_becomes *said = &engine->kase->becomes;
    int64_t list[SEMEL_SKIPPED_MAX];
    struct semel_key key;
    size_t n;

    if (said->last == UNSAID && said->skipped == UNSAID)
        return;
    key = facts(engine->world, "k", false);
    expect(engine, "the key's last version", said->last, key.last_version);
    if (said->skipped == UNSAID)
        return;
    case_skipped(said->skipped, list, &n);
    if (n != key.n_skipped || (n > 0 && memcmp(list, key.skipped, n * sizeof *list) != 0))
        differ(engine->finding, "skipped: expected %zu versions from %lld on, found %zu from %lld on", n,
               n > 0 ? (long long)list[0] : -1, key.n_skipped, key.n_skipped > 0 ? (long long)key.skipped[0] : -1);
}

static void compare_facts(struct engine *engine)
{
    const struct case_becomes *said = &engine->kase->becomes;
    struct world *world = engine->world;

    compare_versions(engine);
    compare_other(engine, "a", said->ahead, UNSAID, UNSAID);
    compare_other(engine, "b", said->behind, said->behind_due, said->behind_cls);
    compare_other(engine, "w", said->with, UNSAID, said->with_cls);
    if (said->business != UNSAID)
        expect(engine, "the business key's holder", said->business, holder(world));
    if (said->watermark != UNSAID)
        expect(engine, "watermark", case_at(said->watermark), watermark(engine));
    expect(engine, "conflicts", said->conflicts, world->driver->conflicts(world, "s", engine->kase->id));
    expect(engine, "attempt rows", said->attempt_rows, world->driver->attempts(world, "s", engine->kase->id));
    expect(engine, "audit lines", said->audits, world->driver->audits(world));
    expect(engine, "the stored outcome was told", said->answer, semel__str_eqz(engine->answer, "{\"o\":1}"));
    if (!engine->no_alerts)
        compare_alerts(engine);
}

static void compare_payload(struct engine *engine, const struct semel_row *after)
{
    const struct kase *kase = engine->kase;
    struct semel_str expected = case_payload(kase->given.row.body != UNSAID ? kase->given.row.body : BODY_A);
    bool tombstone = kase->when.tombstone == 1;

    if (!after->kept || kase->when.body != UNSAID)
        return;
    if (!semel__str_given(after->payload) || !semel__str_eq(after->payload, tombstone ? SEMEL_STR("") : expected))
        differ(engine->finding, "the payload that is kept is another one");
    if (tombstone && !semel__str_eqz(after->headers, "{\"semel_tombstone\":\"true\"}") &&
        !semel__str_eqz(after->headers, "{\"semel_tombstone\": \"true\"}")) /* as jsonb writes it */
        differ(engine->finding, "nothing says that it is a tombstone");
}

static void compare_row(struct engine *engine, struct move *ret_move)
{
    const struct case_row *said = &engine->kase->becomes.row;
    const struct semel_progress *before = engine->there ? &engine->before.progress : NULL;
    struct semel_row after;
    bool damaged = false, there = look(engine->world, engine->kase->id, &after, &damaged);

    *ret_move = (struct move){before != NULL ? before->state : SEMEL_ROW_ABSENT,
                              there && !damaged ? after.progress.state : SEMEL_ROW_ABSENT,
                              engine->kase->becomes.unchanged != 1};
    if (damaged)
        return;
    compare_progress(engine->kase, &engine->policy, before, there ? &after.progress : NULL, engine->finding);
    if (!there)
        return;
    expect(engine, "kept", said->kept, after.kept);
    expect(engine, "wants", engine->kase->becomes.wants, after.n_wants > 0);
    if (said->time != UNSAID)
        expect(engine, "time", case_at(said->time), after.message_time_us);
    if (engine->kase->becomes.unchanged == 1)
        expect(engine, "kept", engine->before.kept, after.kept);
    compare_payload(engine, &after);
    if (said->token == TOKEN_NEW && after.progress.lease_token <= engine->before.progress.lease_token)
        differ(engine->finding, "token: it is not above the last one");
    if (said->token != UNSAID &&
        (after.progress.lease_token == engine->before.progress.lease_token) != (said->token == TOKEN_SAME))
        differ(engine->finding, "token: expected %s", said->token == TOKEN_SAME ? "the same" : "a new one");
    if (engine->state_reported && engine->settled.state != after.progress.state)
        differ(engine->finding, "the caller was told %s, the row is %s", semel__row_status_name(engine->settled.state),
               semel__row_status_name(after.progress.state));
}

static void prepare(struct engine *engine)
{
    struct world *world = engine->world;
    bool damaged = false;
    struct semel_error err;

    case_policy_of(engine->kase, &engine->policy);
    if (semel__policy_check(&engine->policy, &err) != SEMEL_OK)
        differ(engine->finding, "the policy is not allowed: %s", err.text);
    engine->says = engine->kase->when.handler != UNSAID ? engine->kase->when.handler : SEMEL_DONE;
    engine->handler = (struct semel__handler){.ctx = engine, .each = handle};
    plant_all(engine);
    engine->there = look(world, engine->kase->id, &engine->before, &damaged);
    if (engine->kase->given.row.damaged == 1 && !world->driver->damage(world, "s", CASE_ID))
        differ(engine->finding, "the row could not be damaged");
    semel__inbox_init(&engine->inbox, world->store, &engine->policy, &engine->handler, &world->rng,
                      SEMEL_STR("worker-1"));
}

void case_run_event(const struct kase *kase, const struct driver *driver, case_event event, struct finding *finding,
                    struct move *ret_move)
{
    void *state = NULL;
    struct engine engine = {.kase = kase, .finding = finding};

    world_driver = driver;
    world_setup(&state);
    engine.world = state;
    prepare(&engine);
    event(&engine);
    engine.answer = engine.settled.outcome;
    compare_row(&engine, ret_move);
    compare_facts(&engine);
    semel__inbox_done(&engine.inbox);
    world_teardown(&state);
}

bool case_run_engine(const struct kase *kase, const struct driver *driver, struct finding *finding,
                     struct move *ret_move)
{
    case_run_event(kase, driver, happen, finding, ret_move);
    return true;
}
