/* SPDX-License-Identifier: MIT
 *
 * destination.h: where an event goes: a template that is filled in from the event, and a list of allowed results.
 *
 *     {aggregatetype}.events      with the list [order.events, refund.events]
 *
 * Names in braces are replaced: {aggregatetype}, {aggregateid}, {type}, {destination}. Nothing else is: there is no
 * way to write a brace. The result of a row is looked up in the list, byte by byte, so that no row can choose a
 * destination that the settings do not name. A template without names in braces needs no list.
 */
#ifndef SEMEL_CORE_DESTINATION_H
#define SEMEL_CORE_DESTINATION_H

#include "base/str.h"
#include "semel/types.h"

#define SEMEL_DESTINATION_MAX 2048 /* bytes of one that was filled in */

/* Columns of an event; not given: NULL. */
struct semel_destination_of {
    struct semel_str aggregatetype, aggregateid, type, destination;
};

/* For settings: NULL, or what is wrong with the template and its list, to go behind their name in a sentence. A list of
 * a template without names may hold other names, too; the template's own must be among them. */
const char *semel__destination_mistake(struct semel_str pattern, const struct semel_str *list, size_t n);

/* The destination, NUL-terminated, in `out`. INVALID: the event has no such column or an empty one, it becomes too
 * long, or it is not on the list; err names the column and shows the destination. */
semel_status semel__destination_make(struct semel_str pattern, const struct semel_str *list, size_t n,
                                     const struct semel_destination_of *of, char out[SEMEL_DESTINATION_MAX + 1],
                                     struct semel_str *ret, struct semel_error *err);

#endif
