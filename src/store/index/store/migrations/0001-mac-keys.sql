-- What names the MAC key of a namespace: its blocks are believed with a MAC only, from the start on.
ALTER TABLE namespaces ADD COLUMN mac_key_id BLOB;
