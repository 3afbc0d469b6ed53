export * from "./archive.ts";
export * from "./engine-target.ts";
export * from "./ingest-settings.ts";
export * from "./residency-ingest.ts";
