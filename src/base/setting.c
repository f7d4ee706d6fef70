/* SPDX-License-Identifier: MIT
 *
 * setting.c: groups of settings that several rooms share (TLS of either side), and checks of shared parts. See
 * setting.h.
 */
#include "base/setting.h"

#include <stdarg.h>
#include <stdio.h>

static const struct semel_setting_spec tls_settings[] = {
    {"ca_file", SEMEL_SETTING_FILE, 0, SEMEL_SETTING_IN(semel_setting_tls, ca_file),
     .default_note = "the system's authorities", .help = "the authorities whose certificates are trusted"},
    {"cert_file", SEMEL_SETTING_FILE, 0, SEMEL_SETTING_IN(semel_setting_tls, cert_file),
     .help = "our own certificate, with key_file"},
    {"key_file", SEMEL_SETTING_FILE, 0, SEMEL_SETTING_IN(semel_setting_tls, key_file), .help = "the key of cert_file"},
    {"key_password", SEMEL_SETTING_TEXT, SEMEL_SETTING_SECRET, SEMEL_SETTING_IN(semel_setting_tls, key_password),
     SEMEL_SETTING_RANGE(1, 1024), .help = "the passphrase of key_file"},
    {"verify", SEMEL_SETTING_FLAG, SEMEL_SETTING_NOT, SEMEL_SETTING_IN(semel_setting_tls, no_verify),
     .default_text = "true", .help = "check the other side's certificate and name"},
};
const struct semel_setting_group semel__setting_tls = SEMEL_SETTING_GROUP_OF(NULL, tls_settings);

static const struct semel_setting_spec tls_server_settings[] = {
    {"cert_file", SEMEL_SETTING_FILE, SEMEL_SETTING_REQUIRED, SEMEL_SETTING_IN(semel_setting_tls_server, cert_file),
     .help = "the server's certificate with its chain"},
    {"key_file", SEMEL_SETTING_FILE, SEMEL_SETTING_REQUIRED, SEMEL_SETTING_IN(semel_setting_tls_server, key_file),
     .help = "the key of cert_file"},
    {"client_ca_file", SEMEL_SETTING_FILE, 0, SEMEL_SETTING_IN(semel_setting_tls_server, client_ca_file),
     .help = "then every client needs a certificate of one of these authorities"},
};
const struct semel_setting_group semel__setting_tls_server = SEMEL_SETTING_GROUP_OF(NULL, tls_server_settings);

void semel__setting_wrong(const struct semel_setting_check *check, const char *setting, const char *fmt, ...)
{
    char text[512];
    va_list args;

    va_start(args, fmt);
    vsnprintf(text, sizeof text, fmt, args);
    va_end(args);
    check->wrong(check, setting, text);
}

bool semel__setting_scheme(struct semel_str url, const char *scheme)
{
    const size_t n = strlen(scheme);

    return url.n > n && memcmp(url.p, scheme, n) == 0 && url.p[n] == ':';
}

void semel__setting_check_tls(const struct semel_setting_check *check, const struct semel_setting_tls *tls)
{
    const bool cert = tls->cert_file != NULL, key = tls->key_file != NULL;

    if (cert != key)
        semel__setting_wrong(check, cert ? "tls.cert_file" : "tls.key_file", "%s.tls.%s needs %s as well", check->path,
                             cert ? "cert_file" : "key_file", cert ? "key_file" : "cert_file");
}

void semel__setting_check_tls_url(const struct semel_setting_check *check, const char *plain, struct semel_str url,
                                  struct semel_setting_tls *tls)
{
    const bool given = check->given(check, "tls"), clear = semel__setting_scheme(url, plain);

    if (given && clear && tls->on)
        semel__setting_wrong(check, "tls", "%s.tls is on, but the URL begins with %s:; it must be %ss:", check->path,
                             plain, plain);
    if (given && !clear && !tls->on)
        semel__setting_wrong(check, "tls", "%s.tls is false, but the URL begins with %ss:; one of them is right",
                             check->path, plain);
    tls->on = !clear;
    semel__setting_check_tls(check, tls);
}

void semel__setting_check_reach(const struct semel_setting_check *check, const char *setting,
                                const struct semel_setting_server *server)
{
    char is[96];

    if (server->address.local || server->tls.on || server->plain)
        return;
    check->show(check, setting, is, sizeof is);
    semel__setting_wrong(check, setting,
                         "%s.%s is %s, which others can reach; it must have tls, or be loopback or a unix socket; "
                         "where a proxy terminates TLS, set plain: true",
                         check->path, setting, is);
}

void semel__setting_check_path(const struct semel_setting_check *check, struct semel_str *path)
{
    if (!semel__str_given(*path)) {
        char text[SEMEL_ID_MAX + 2];
        snprintf(text, sizeof text, "/%.*s", (int)check->route.n, check->route.p);
        *path = semel__str(check->keep(check, text));
    }
    for (size_t i = 0; i < path->n; i++)
        if (path->p[0] != '/' || strchr(" ?#%{}", path->p[i]) != NULL) {
            semel__setting_wrong(
                check, "path",
                "%s.path must begin with / and have no blank, brace, ?, # or %% in it; set one that does", check->path);
            return;
        }
}
