export * from "./authority-folder.ts";
export * from "./authorize.ts";
export * from "./certificate.ts";
export * from "./read-credentials.ts";
export * from "./watched-trust.ts";
