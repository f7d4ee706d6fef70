// SPDX-License-Identifier: MIT

import java.nio.charset.StandardCharsets;
import java.sql.Connection;
import java.sql.DriverManager;
import java.sql.PreparedStatement;
import java.sql.ResultSet;
import java.sql.SQLException;
import java.util.Scanner;

/** A consumer in Java with JDBC: a delivery is a line of standard input, `ID PAYLOAD`. See examples/README.md. */
public class Consumer {
    static final String BEGIN = "SELECT act, why FROM semel.inbox_begin('billing', ?, raw => ?)";
    static final String EFFECT =
        "INSERT INTO ledger SELECT e->>'account', (e->>'cents')::int "
        + "FROM (SELECT convert_from(?, 'UTF8')::jsonb) AS m (e)";
    static final String FAIL =
        "SELECT act, why FROM semel.inbox_fail('billing', ?, raw => ?, class => 'permanent', reason => ?)";
    static final String DONE = "SELECT semel.inbox_done('billing', ?)";

    static PreparedStatement prepare(Connection db, String sql, Object... values) throws Exception {
        PreparedStatement statement = db.prepareStatement(sql);
        for (int i = 0; i < values.length; i++) {
            statement.setObject(i + 1, values[i]);
        }
        return statement;
    }

    /** Without an id that can be stored the message is quarantined: kept for a person, and acknowledged. */
    static String known(String id) {
        int size = id.getBytes(StandardCharsets.UTF_8).length;
        return size >= 1 && size <= 255 && id.indexOf('\0') < 0 ? id : null;
    }

    static ResultSet handle(Connection db, String id, byte[] payload) throws Exception {
        ResultSet told = prepare(db, BEGIN, id, payload).executeQuery(); // autocommit is off: this opens a transaction
        told.next();
        if (told.getString("act").equals("run")) {
            prepare(db, EFFECT, payload).executeUpdate();
            prepare(db, DONE, id).executeQuery();
        }
        return told;
    }

    static void deliver(Connection db, String name, byte[] payload) throws Exception {
        String id = known(name);
        ResultSet told;
        try {
            told = handle(db, id, payload);
        } catch (SQLException error) {
            if (!error.getSQLState().matches("(22|23|54).*")) {
                throw error;
            }
            db.rollback(); // the message's fault (data, a constraint, depth): the effect is undone, the failure recorded
            String reason = error.getMessage().split("\n")[0]; // its details quote the row
            told = prepare(db, FAIL, id, payload, reason).executeQuery();
            told.next();
        }
        db.commit(); // one transaction for the record and the effect; a failure, too, whatever it answers
        System.out.println(name + " " + told.getString("act") + " " + told.getString("why"));
    }

    public static void main(String[] args) throws Exception {
        try (Connection db = DriverManager.getConnection(System.getenv("JDBC_URL"));
             Scanner in = new Scanner(System.in, StandardCharsets.UTF_8)) {
            db.setAutoCommit(false);
            while (in.hasNextLine()) {
                String[] line = in.nextLine().split(" ", 2);
                deliver(db, line[0], line[1].getBytes(StandardCharsets.UTF_8)); // what is no JSON is kept, too
            }
        }
    }
}
