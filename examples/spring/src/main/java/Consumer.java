// SPDX-License-Identifier: MIT

import java.nio.charset.StandardCharsets;
import java.sql.SQLException;
import java.util.Scanner;
import javax.sql.DataSource;
import org.springframework.context.annotation.AnnotationConfigApplicationContext;
import org.springframework.context.annotation.Bean;
import org.springframework.context.annotation.Configuration;
import org.springframework.dao.DataAccessException;
import org.springframework.jdbc.core.JdbcTemplate;
import org.springframework.jdbc.datasource.DataSourceTransactionManager;
import org.springframework.jdbc.datasource.DriverManagerDataSource;
import org.springframework.transaction.annotation.EnableTransactionManagement;
import org.springframework.transaction.annotation.Transactional;

/** A consumer in Java with Spring's @Transactional: a delivery is a line of standard input, `ID PAYLOAD`. */
@Configuration
@EnableTransactionManagement
public class Consumer {
    /** What the broker is told: run and ack: acknowledge it; later: let it come again. */
    public record Answer(String act, String why) {}

    public static class Billing {
        private final JdbcTemplate db;

        Billing(DataSource source) {
            db = new JdbcTemplate(source);
        }

        private Answer ask(String function, Object... values) {
            return db.queryForObject("SELECT act, why FROM semel." + function,
                                     (row, n) -> new Answer(row.getString(1), row.getString(2)), values);
        }

        /** The record of the message and its effect are one transaction: this method's. */
        @Transactional
        public Answer handle(String id, byte[] payload) {
            Answer answer = ask("inbox_begin('billing', ?, raw => ?)", id, payload);
            if (answer.act().equals("run")) {
                db.update("INSERT INTO ledger SELECT e->>'account', (e->>'cents')::int "
                          + "FROM (SELECT convert_from(?, 'UTF8')::jsonb) AS m (e)", payload);
                db.queryForList("SELECT semel.inbox_done('billing', ?)", id);
            }
            return answer;
        }

        /** The effect was rolled back; the failure commits by itself, with the payload, whatever it answers. */
        @Transactional
        public Answer fail(String id, byte[] payload, String reason) {
            return ask("inbox_fail('billing', ?, raw => ?, class => 'permanent', reason => ?)", id, payload,
                       reason);
        }
    }

    /** Without an id that can be stored the message is quarantined: kept for a person, and acknowledged. */
    static String known(String id) {
        int size = id.getBytes(StandardCharsets.UTF_8).length;
        return size >= 1 && size <= 255 && id.indexOf('\0') < 0 ? id : null;
    }

    @Bean
    DataSource source() {
        return new DriverManagerDataSource(System.getenv("JDBC_URL")); // yours: a pool
    }

    @Bean
    DataSourceTransactionManager transactions(DataSource source) {
        return new DataSourceTransactionManager(source);
    }

    @Bean
    Billing billing(DataSource source) {
        return new Billing(source);
    }

    public static void main(String[] args) {
        try (var spring = new AnnotationConfigApplicationContext(Consumer.class);
             var in = new Scanner(System.in, StandardCharsets.UTF_8)) {
            Billing billing = spring.getBean(Billing.class);
            while (in.hasNextLine()) {
                String[] line = in.nextLine().split(" ", 2);
                String id = known(line[0]);
                byte[] payload = line[1].getBytes(StandardCharsets.UTF_8); // what is no JSON is kept, too
                Answer answer;
                try {
                    answer = billing.handle(id, payload);
                } catch (DataAccessException error) {
                    Throwable cause = error.getMostSpecificCause();
                    if (!(cause instanceof SQLException sql) || !sql.getSQLState().matches("(22|23|54).*")) {
                        throw error;
                    }
                    // The message's fault: data, a constraint, too deep. Further lines of the reason quote the row.
                    answer = billing.fail(id, payload, cause.getMessage().split("\n")[0]);
                }
                System.out.println(line[0] + " " + answer.act() + " " + answer.why());
            }
        }
    }
}
