// SPDX-License-Identifier: MIT
// Before 8.22 pg writes a value that it cannot convert, such as an array that is nested too deeply, by half into a buffer
// that all connections share, so that the next query of any of them has wrong parameters; and it sends no Sync behind
// it, so that its own connection waits for ever. Here values are converted before anything is written.
'use strict';

module.exports = function convertFirst({ connection }) { // pg's native client has none
  if (!connection || Object.hasOwn(connection, 'bind')) return;
  const { bind, sync } = connection;
  let owed = false;
  connection.sync = () => { owed = false; sync.call(connection); };
  connection.bind = ({ values, valueMapper: mapped = (value) => value, ...others }) => {
    try {
      bind.call(connection, { ...others, values: (values || []).map((value) => mapped(value)) });
    } catch (error) {
      owed = true;
      queueMicrotask(() => { if (owed) connection.sync(); }); // pg 8.22 has sent one by then
      throw error;
    }
  };
};
