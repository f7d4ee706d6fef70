/* SPDX-License-Identifier: MIT
 *
 * tls_why.c: see tls_why.h. The two usual mistakes of settings have texts of their own; the others have OpenSSL's.
 */
#include "broker/tls_why.h"

#include <openssl/x509_vfy.h>

const char *semel__tls_why(int code)
{
    switch (code) {
    case X509_V_ERR_UNABLE_TO_GET_ISSUER_CERT:
    case X509_V_ERR_UNABLE_TO_GET_ISSUER_CERT_LOCALLY:
    case X509_V_ERR_UNABLE_TO_VERIFY_LEAF_SIGNATURE:
    case X509_V_ERR_DEPTH_ZERO_SELF_SIGNED_CERT:
    case X509_V_ERR_SELF_SIGNED_CERT_IN_CHAIN:
        return "signed by an unknown authority; tls.ca_file must contain it";
    case X509_V_ERR_HOSTNAME_MISMATCH:
    case X509_V_ERR_IP_ADDRESS_MISMATCH:
        return "it is for another host name; connect by a name that the certificate contains";
    default:
        return X509_verify_cert_error_string(code);
    }
}
