const LINE_CHARACTERS = 64;
const BLOCK = /-----BEGIN ([A-Z0-9 ]+)-----\s([A-Za-z0-9+/=\s]*?)-----END \1-----/g;

export function encodePem(label: string, der: Uint8Array): string {
  const text = Buffer.from(der).toString("base64");
  const lines = text.match(new RegExp(`.{1,${LINE_CHARACTERS}}`, "g")) ?? [];
  return `-----BEGIN ${label}-----\n${lines.join("\n")}\n-----END ${label}-----\n`;
}

/** The blocks of this label in the order of the text; what stands between them is passed over. */
export function decodePem(label: string, text: string): Uint8Array[] {
  return [...text.matchAll(BLOCK)]
    .filter(([, found]) => found === label)
    .map(([, , body]) => new Uint8Array(Buffer.from(body!, "base64")));
}
