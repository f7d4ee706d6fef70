/* SPDX-License-Identifier: MIT
 *
 * tls_why.h: why the certificate of a server was refused, with the setting that would help.
 */
#ifndef SEMEL_BROKER_TLS_WHY_H
#define SEMEL_BROKER_TLS_WHY_H

/* `code` is OpenSSL's X509_V_ERR_*. The text continues "certificate refused: ". */
const char *semel__tls_why(int code);

#endif
