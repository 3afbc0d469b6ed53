/** Object identifiers of RFC 5280 and RFC 5480. */
export const OID = {
  commonName: "2.5.4.3",
  ecdsaWithSha256: "1.2.840.10045.4.3.2",
  subjectKeyIdentifier: "2.5.29.14",
  keyUsage: "2.5.29.15",
  subjectAltName: "2.5.29.17",
  basicConstraints: "2.5.29.19",
  nameConstraints: "2.5.29.30",
  authorityKeyIdentifier: "2.5.29.35",
  extendedKeyUsage: "2.5.29.37",
  serverAuth: "1.3.6.1.5.5.7.3.1",
  clientAuth: "1.3.6.1.5.5.7.3.2",
} as const;

/** Forms of a name in a subjectAltName, by the number of their tag. */
export const NAME_KINDS = [
  "other",
  "email",
  "dns",
  "x400",
  "directory",
  "edi",
  "uri",
  "ip",
  "registered",
] as const;
export type NameKind = (typeof NAME_KINDS)[number];

/** Bits of keyUsage, by their number. */
export const KEY_USAGE = { digitalSignature: 0, certSign: 5, crlSign: 6 } as const;
export type KeyUsage = keyof typeof KEY_USAGE;
