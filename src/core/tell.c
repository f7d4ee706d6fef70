/* SPDX-License-Identifier: MIT
 *
 * tell.c: after the commit. The acts for the deliveries, the counts and the alerts; nothing here is written.
 */
#include "base/error.h"
#include "base/str.h"
#include "core/work.h"

enum semel_act semel__act_for(enum semel_state state, bool kept)
{
    switch (state) {
    case SEMEL_STATE_COMPLETED:
    case SEMEL_STATE_REJECTED:
    case SEMEL_STATE_STALE:
    case SEMEL_STATE_PREVENTED:
    case SEMEL_STATE_DEAD:
    case SEMEL_STATE_QUARANTINED:
        return SEMEL_ACK;
    case SEMEL_STATE_FAILED:
    case SEMEL_STATE_WAITING:
    case SEMEL_STATE_UNKNOWN:
        return kept ? SEMEL_ACK : SEMEL_LATER;
    case SEMEL_STATE_PROCESSING:
    case SEMEL_STATE_ABSENT:
    case SEMEL_STATE_COUNT:
        return SEMEL_LATER;
    }
    return SEMEL_LATER;
}

void semel__alert(struct semel_inbox *inbox, enum semel_alert alert, const struct semel__msg *msg,
                  struct semel_str text)
{
    inbox->counts.alerts[alert]++;
    if (inbox->observer.alert != NULL)
        inbox->observer.alert(inbox->observer.ctx, alert, msg, text);
}

static bool kept(const struct work *work, const struct item *item)
{
    bool brought = semel__str_given(item->msg->payload);
    return (brought && semel__payload_stays(work->inbox->policy, item->live.state)) ||
           (item->row != NULL && item->row->kept);
}

static void count_end(struct semel_inbox *inbox, const struct item *item)
{
    const struct semel_live *live = &item->live;
    inbox->counts.done += live->state == SEMEL_STATE_COMPLETED;
    inbox->counts.failed += item->ended && live->state != SEMEL_STATE_REJECTED;
    inbox->counts.rejected += live->state == SEMEL_STATE_REJECTED;
    inbox->counts.classes[live->error_class] += item->ended || live->state == SEMEL_STATE_REJECTED;
}

static void raise_alerts(struct semel_inbox *inbox, const struct item *item)
{
    const struct semel_live *live = &item->live;
    if (item->verdict.why == SEMEL_WHY_DAMAGED)
        semel__alert(inbox, SEMEL_ALERT_DAMAGED, item->msg, semel__str(item->damage.text));
    if (item->verdict.why == SEMEL_WHY_CONFLICT)
        semel__alert(inbox, SEMEL_ALERT_CONFLICT, item->msg, SEMEL_STR("the same id came with another payload"));
    if (item->removed && item->verdict.full)
        semel__alert(inbox, SEMEL_ALERT_PARKED_FULL, item->msg,
                     semel__msg_large(inbox->policy, item->msg)
                         ? SEMEL_STR("100 messages above payload_max are kept already: the source pauses")
                         : SEMEL_STR("too many messages are parked: the source pauses"));
    if (!item->changed || item->adopted)
        return;
    if (live->state == SEMEL_STATE_DEAD)
        semel__alert(inbox, SEMEL_ALERT_DEAD, item->msg, live->error_text);
    if (live->state == SEMEL_STATE_QUARANTINED)
        semel__alert(inbox, SEMEL_ALERT_QUARANTINED, item->msg, live->error_text);
    if (live->state == SEMEL_STATE_UNKNOWN)
        semel__alert(inbox, SEMEL_ALERT_UNKNOWN, item->msg, live->error_text);
    if (live->state == SEMEL_STATE_WAITING && item->row != NULL && item->row->live.error_class == SEMEL_CLASS_GAP &&
        live->error_class == SEMEL_CLASS_GAP)
        semel__alert(inbox, SEMEL_ALERT_GAP, item->msg, SEMEL_STR("versions are still missing after the time-out"));
}

static semel_status tell_copies(struct semel_inbox *inbox, const struct item *item)
{
    for (const struct copy *copy = item->copies; copy != NULL; copy = copy->next) {
        if (copy->out == NULL)
            continue;
        *copy->out = *item->out;
        copy->out->why = copy->conflict ? SEMEL_WHY_CONFLICT : SEMEL_WHY_DUPLICATE;
        if (copy->conflict) {
            copy->out->act = SEMEL_ACK;
            semel__alert(inbox, SEMEL_ALERT_CONFLICT, copy->msg, SEMEL_STR("the same id came with another payload"));
        }
        inbox->counts.why[copy->out->why]++;
    }
    return SEMEL_OK;
}

/* Its end is still to come, and will be told. */
static bool unended(const struct item *item)
{
    bool claimed = item->verdict.act == SEMEL_RUN && item->live.state == SEMEL_STATE_PROCESSING;
    return claimed || item->deferred;
}

enum semel_act semel__item_act(const struct work *work, const struct item *item)
{
    if (unended(item) || (item->fenced && item->row == NULL))
        return SEMEL_LATER;
    bool ran = item->verdict.act == SEMEL_RUN;
    return ran || item->fenced ? semel__act_for(item->live.state, kept(work, item)) : item->verdict.act;
}

static semel_status tell_item(struct work *work, struct item *item, struct semel_error *err)
{
    struct semel_inbox *inbox = work->inbox;
    bool ran = item->verdict.act == SEMEL_RUN;
    struct semel_str outcome = {0};
    if (unended(item))
        return SEMEL_OK;
    item->settled = true;
    if (ran)
        count_end(inbox, item);
    inbox->counts.fenced += item->fenced;
    raise_alerts(inbox, item);
    if (item->out == NULL)
        return SEMEL_OK;
    inbox->counts.why[item->verdict.why]++;
    if ((ran || item->row != NULL) && !semel__arena_copy(&inbox->arena, item->live.outcome, &outcome))
        return semel__fail_memory(err);
    bool known = item->admit == NULL ? item->row != NULL : item->damage.status == SEMEL_OK;
    *item->out = (struct semel_settled){
        .act = semel__item_act(work, item),
        .why = item->verdict.why,
        .state = item->removed || !known ? SEMEL_STATE_ABSENT : item->live.state,
        .attempt = item->verdict.attempt,
        .due_us = item->live.due_us,
        .cls = item->live.error_class,
        .kept = item->row != NULL && item->row->kept,
        .outcome = outcome,
    };
    return tell_copies(inbox, item);
}

semel_status semel__work_tell(struct work *work, struct semel_error *err)
{
    semel_status status = SEMEL_OK;
    for (size_t i = 0; i < work->n && status == SEMEL_OK; i++)
        status = tell_item(work, work->items[i], err);
    return status;
}
