import type { Config } from "./schema.ts";
import { type SumCheck, unless } from "./sum-check.ts";

type Nats = Pick<
  Config["nats"],
  "certFile" | "keyFile" | "credsFile" | "nkeyFile" | "tokenFile" | "userFile"
>;

/** Rules of [nats], whoever connects. */
export const NATS_CHECKS: readonly SumCheck<{ readonly nats: Nats }>[] = [
  {
    keys: ["nats.cert_file", "nats.key_file"],
    find: ({ nats }) =>
      unless(
        (nats.certFile === null) === (nats.keyFile === null),
        "cert_file and key_file belong together",
        "set both or none",
      ),
  },
  {
    keys: ["nats.creds_file", "nats.nkey_file", "nats.token_file", "nats.user_file"],
    find({ nats }) {
      const set = [nats.credsFile, nats.nkeyFile, nats.tokenFile, nats.userFile];
      return unless(
        set.filter((path) => path !== null).length <= 1,
        "several ways to say who this is",
        "keep one of creds_file, nkey_file, token_file and user_file",
      );
    },
  },
];

/** What agents and routers have alike. */
export type AccessConfig = Omit<
  Config["api"],
  "socket" | "socketGroup" | "socketRole" | "flushByGet"
>;

/** Rules of [api], whoever serves. */
export const API_CHECKS: readonly SumCheck<{ readonly api: AccessConfig }>[] = [
  {
    keys: ["api.listen", "api.token_file"],
    find: ({ api }) =>
      unless(
        api.listen.loopback || (api.tokenFile ?? api.tokensFile ?? api.tlsClientCaFile) !== null,
        `${api.listen.host} can be reached from other machines, and api.token_file is not set`,
        'set api.token_file (or tokens_file, or tls_client_ca_file), or listen on "127.0.0.1:7171"',
      ),
  },
  {
    keys: ["api.tls_cert_file", "api.tls_key_file"],
    find: ({ api }) =>
      unless(
        (api.tlsCertFile === null) === (api.tlsKeyFile === null),
        "a certificate and its key need each other, and one of the two is not set",
        "set both tls_cert_file and tls_key_file, or neither",
      ),
  },
  {
    keys: ["api.tls_client_ca_file", "api.tls_cert_file"],
    find: ({ api }) =>
      unless(
        api.tlsClientCaFile === null || api.tlsCertFile !== null,
        "certificates of callers are seen on HTTPS only, and tls_cert_file is not set",
        "set tls_cert_file and tls_key_file",
      ),
  },
];
