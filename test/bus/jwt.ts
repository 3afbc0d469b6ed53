import { createHash } from "node:crypto";
import { nkeys } from "@nats-io/transport-node";

type KeyPair = ReturnType<typeof nkeys.createUser>;

const ALPHABET = "ABCDEFGHIJKLMNOPQRSTUVWXYZ234567";

function base32(bytes: Uint8Array): string {
  let bits = "";
  for (const byte of bytes) bits += byte.toString(2).padStart(8, "0");
  return (bits.match(/.{1,5}/g) ?? [])
    .map((part) => ALPHABET[Number.parseInt(part.padEnd(5, "0"), 2)])
    .join("");
}

function sign(issuer: KeyPair, subject: string, name: string, nats: object, more = {}): string {
  const iss = issuer.getPublicKey();
  const claims = { iat: Math.floor(Date.now() / 1_000), iss, name, sub: subject, nats, ...more };
  const jti = base32(createHash("sha256").update(JSON.stringify(claims)).digest());
  const part = (value: object) => Buffer.from(JSON.stringify(value)).toString("base64url");
  const body = `${part({ typ: "JWT", alg: "ed25519-nkey" })}.${part({ jti, ...claims })}`;
  return `${body}.${Buffer.from(issuer.sign(Buffer.from(body))).toString("base64url")}`;
}

export interface Operator {
  /** For the server's config: the operator, and the account in memory. */
  readonly lines: readonly string[];
  /** A creds file of a new user; `expiresSeconds`: since 1970. */
  userCreds(expiresSeconds?: number): string;
}

/** An operator with one account, as `nsc` would make them. */
export function makeOperator(): Operator {
  const operator = nkeys.createOperator();
  const account = nkeys.createAccount();
  const id = account.getPublicKey();
  const limits = { subs: -1, data: -1, payload: -1, conn: -1, leaf: -1, imports: -1, exports: -1 };
  const operatorJwt = sign(operator, operator.getPublicKey(), "O", {
    type: "operator",
    version: 2,
  });
  const accountJwt = sign(operator, id, "A", {
    limits: { ...limits, wildcards: true },
    type: "account",
    version: 2,
  });
  return {
    lines: [
      `operator: ${operatorJwt}`,
      "resolver: MEMORY",
      `resolver_preload: { ${id}: ${accountJwt} }`,
    ],
    userCreds(expiresSeconds) {
      const user = nkeys.createUser();
      const nats = { pub: {}, sub: {}, subs: -1, data: -1, payload: -1, type: "user", version: 2 };
      const more = expiresSeconds === undefined ? {} : { exp: expiresSeconds };
      const jwt = sign(account, user.getPublicKey(), "U", nats, more);
      const seed = new TextDecoder().decode(user.getSeed());
      return [
        "-----BEGIN NATS USER JWT-----",
        jwt,
        "------END NATS USER JWT------",
        "",
        "-----BEGIN USER NKEY SEED-----",
        seed,
        "------END USER NKEY SEED------",
        "",
      ].join("\n");
    },
  };
}
