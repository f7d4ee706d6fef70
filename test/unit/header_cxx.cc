/* SPDX-License-Identifier: MIT
 *
 * header_cxx.cc: the public headers, compiled as strict C++11 by a program that has nothing but them and the shared
 * library.
 */
#include <semel/semel.h>

#include <cstdio>
#include <string>

static semel_status handle(void *ctx, struct semel *s, const struct semel_msg *msg, int, struct semel_reply *,
                           struct semel_error *)
{
    *static_cast<std::string *>(ctx) = std::string(msg->id.p, msg->id.n);
    return semel_native(s) != nullptr ? SEMEL_OK : SEMEL_INVALID;
}

int main()
{
    struct semel *s = nullptr;
    semel_error err;
    semel_msg msg;
    semel_verdict verdict;
    std::string seen;
    semel_msg_init(&msg);
    msg.consumer = semel_str("c");
    msg.id = semel_str("1");
    bool ok = semel_open(&s, "sqlite::memory:", SEMEL_CREATE | SEMEL_MIGRATE, &err) == SEMEL_OK;
    ok = ok && semel_inbox_process(s, &msg, 1, handle, &seen, &verdict, &err) == SEMEL_OK;
    ok = ok && verdict.act == SEMEL_ACK && seen == "1" && std::string(semel_act_name(verdict.act)) == "ack";
    if (!ok)
        std::printf("%s\n", err.text);
    semel_close(s);
    return ok ? 0 : 1;
}
