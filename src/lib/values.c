/* SPDX-License-Identifier: MIT
 *
 * values.c: the plain values of semel.h, their names, and functions that need no handle.
 */
#include <string.h>

#include "base/error.h"
#include "base/str.h"
#include "lib/handle.h"

#ifdef SEMEL_WITH_SQLITE
#include "store/sqlite_store.h"
#endif
#ifdef SEMEL_WITH_POSTGRES
#include "store/pg_store.h"
#endif

#define TEXT_OF(n) #n
#define TEXT(n) TEXT_OF(n)

void semel_msg_init(struct semel_msg *msg)
{
    if (msg != NULL)
        *msg = (struct semel_msg){.size = sizeof *msg,
                                  .version = SEMEL_NONE,
                                  .message_time_us = SEMEL_NONE,
                                  .not_before_us = SEMEL_NONE};
}

void semel_verdict_init(struct semel_verdict *verdict)
{
    if (verdict != NULL)
        *verdict = (struct semel_verdict){.size = sizeof *verdict,
                                          .token = SEMEL_NONE,
                                          .lease_until_us = SEMEL_NONE,
                                          .due_us = SEMEL_NONE};
}

void semel_event_init(struct semel_event *event)
{
    if (event != NULL)
        *event = (struct semel_event){.size = sizeof *event};
}

struct semel_str semel_str(const char *text)
{
    return semel__str(text);
}

/* ---- names --------------------------------------------------------------------------------------- */

const char *semel_status_text(semel_status status)
{
    return semel__status_text(status);
}

const char *semel_act_name(enum semel_act act)
{
    return semel__act_name(act);
}

const char *semel_why_name(enum semel_why why)
{
    return semel__why_name(why);
}

const char *semel_row_status_name(enum semel_row_status state)
{
    return semel__row_status_name(state);
}

const char *semel_class_name(enum semel_class cls)
{
    return semel__class_name(cls);
}

const char *semel_result_name(enum semel_result result)
{
    return semel__result_name(result);
}

const char *semel_version(void)
{
    return TEXT(SEMEL_VERSION_MAJOR) "." TEXT(SEMEL_VERSION_MINOR) "." TEXT(SEMEL_VERSION_PATCH);
}

/* ---- failures of handlers ------------------------------------------------------------------------ */

/* A class that only a verdict can have is no cause: then the message gets it, and is tried again. */
static enum semel_class blamed(enum semel_class cls)
{
    switch (cls) {
    case SEMEL_CLASS_TRANSIENT:
    case SEMEL_CLASS_PERMANENT:
    case SEMEL_CLASS_REJECTED:
    case SEMEL_CLASS_UNKNOWN:
    case SEMEL_CLASS_ENVIRONMENT:
    case SEMEL_CLASS_BROKEN:
        return cls;
    case SEMEL_CLASS_NONE:
    case SEMEL_CLASS_BLOCKED:
    case SEMEL_CLASS_GAP:
    case SEMEL_CLASS_TOO_OLD:
    case SEMEL_CLASS_NO_ID:
    case SEMEL_CLASS_BUSINESS:
    case SEMEL_CLASS_STALE:
    case SEMEL_CLASS_LEASE:
    case SEMEL_CLASS_RELEASED:
    case SEMEL_CLASS_DISCARDED:
        break;
    }
    return SEMEL_CLASS_TRANSIENT;
}

semel_status semel_fail(struct semel_error *err, enum semel_class cls, const char *text)
{
    char shown[sizeof err->text];
    cls = blamed(cls);
    semel__str_show(shown, sizeof shown, semel__str(text != NULL ? text : "the handler failed"));
    return semel__fail(err, cls == SEMEL_CLASS_ENVIRONMENT ? SEMEL_RETRY : SEMEL_INVALID, cls, "%s", shown);
}

semel_status semel_fail_sqlite(struct semel *s, int rc, struct semel_error *err)
{
#ifdef SEMEL_WITH_SQLITE
    const int ok = 0, row = 100, done = 101; /* the codes of success */
    if (rc == ok || rc == row || rc == done)
        return semel__fail(err, SEMEL_INVALID, SEMEL_CLASS_BROKEN,
                           "semel_fail_sqlite was given result code %d, which is no failure", rc);
    if (s != NULL && strcmp(s->store->ops->name, "sqlite") != 0)
        return semel__fail(err, SEMEL_INVALID, SEMEL_CLASS_BROKEN, "the handle is not one on SQLite");
    return semel__sqlite_fail(s != NULL ? semel_store_native(s->store) : NULL, rc, "handler", err);
#else
    (void)s;
    return semel__fail(err, SEMEL_INVALID, SEMEL_CLASS_BROKEN, "result code %d of SQLite, which this build lacks", rc);
#endif
}

semel_status semel_fail_pg(struct semel *s, const struct pg_result *result, struct semel_error *err)
{
#ifdef SEMEL_WITH_POSTGRES
    if (s == NULL || !semel__pg_is(s->store))
        return semel__fail(err, SEMEL_INVALID, SEMEL_CLASS_BROKEN, "the handle is not one on PostgreSQL");
    return semel__pg_fail(semel_store_native(s->store), result, "handler", err);
#else
    (void)s;
    (void)result;
    return semel__fail(err, SEMEL_INVALID, SEMEL_CLASS_BROKEN, "a result of PostgreSQL, which this build lacks");
#endif
}

/* ---- keys ---------------------------------------------------------------------------------------- */

semel_status semel_step_key(const struct semel_msg *msg, const char *step, char ret_key[SEMEL_STEP_KEY_SIZE],
                            struct semel_error *err)
{
    semel__error_clear(err);
    if (ret_key == NULL)
        return semel__fail(err, SEMEL_INVALID, SEMEL_CLASS_BROKEN, "ret_key is NULL");
    semel_status status = semel__check_consumer(msg, err);
    if (status == SEMEL_OK)
        status = semel__check_str("source", msg->source, err);
    if (status == SEMEL_OK)
        status = semel__id_check("source", msg->source, 0, err);
    if (status == SEMEL_OK)
        status = semel__check_str("id", msg->id, err);
    if (status == SEMEL_OK)
        status = semel__id_check("id", msg->id, 1, err);
    if (status == SEMEL_OK)
        status = semel__id_check("step", semel__str(step), 1, err);
    if (status != SEMEL_OK)
        return status;
    return semel__step_key(msg->consumer, msg->source, msg->id, semel__str(step), ret_key) ? SEMEL_OK
                                                                                           : semel__fail_memory(err);
}
